"""kind clusters: their configuration, and the commands `kind` and `docker` that manage them."""

import asyncio
import hashlib
import json
import os
import shutil
import signal
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, cast

import yaml
from capelin.api import DescribedModel, Port
from capelin.api.core import Namespace
from capelin.client import Client, ClientError, ClientOptions, Config
from capelin.errors import InvalidInputError, NotReadyError, UnfitMachineError
from capelin.programs import default_signals
from capelin_embedded.binaries import Binaries
from capelin_embedded.processes import write_private

from capelin_cli.binaries import KIND
from capelin_cli.terminal.waiting import Show, wait_for

MIRRORS = "/etc/containerd/certs.d"
"""Where containerd looks for a registry's mirrors each time it pulls."""
_CLUSTER_LABEL: Final = "io.x-k8s.kind.cluster"
_ROLE_LABEL: Final = "io.x-k8s.kind.role"
_LAST_LINES: Final = 12
_ANSWER_SECONDS: Final = 5.0


class KindMount(DescribedModel):
    """A folder of this machine in a node."""

    host_path: str
    """Absolute path on this machine."""
    container_path: str
    """Absolute path in the node."""
    read_only: bool = False
    """Whether the node may not write to it."""


class KindPort(DescribedModel):
    """A port of a node that this machine listens on."""

    container_port: Port
    """Port in the node."""
    host_port: Port
    """Port of this machine."""
    listen_address: str = "127.0.0.1"
    """Address of this machine that it listens on."""
    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"
    """Protocol of the port."""


class KindNode(DescribedModel):
    """A node of a kind cluster."""

    role: Literal["control-plane", "worker"] = "control-plane"
    """Role of the node."""
    mounts: list[KindMount] = []
    """Folders of this machine in the node."""
    ports: list[KindPort] = []
    """Ports of the node on this machine."""
    labels: dict[str, str] = {}
    """Labels of the Node object."""


class KindConfig(DescribedModel):
    """A Kubernetes cluster in containers of this machine, made by kind."""

    name: str
    """Name of the cluster in `kind get clusters`."""
    image: str | None = None
    """Image of the nodes. Default: kind's own."""
    nodes: list[KindNode] = []
    """The nodes. Default: one control plane node, which runs everything."""
    feature_gates: dict[str, bool] = {}
    """Feature gates of all of Kubernetes' components."""
    pod_subnet: str | None = None
    """Addresses of pods, such as `10.244.0.0/16`. Default: kind's own."""


def cluster_config(inputs: KindConfig) -> dict[str, Any]:
    """The configuration for `kind create cluster --config`."""
    config: dict[str, Any] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": inputs.name,
        "nodes": [_node(node, inputs.image) for node in inputs.nodes or [KindNode()]],
        "containerdConfigPatches": [
            f'[plugins."io.containerd.grpc.v1.cri".registry]\nconfig_path = "{MIRRORS}"'
        ],
    }
    if inputs.feature_gates:
        config["featureGates"] = dict(inputs.feature_gates)
    if inputs.pod_subnet is not None:
        config["networking"] = {"podSubnet": inputs.pod_subnet}
    return config


def hosts_file(registry: str, mirror: str) -> str:
    """The file that has containerd pull a registry's images from a mirror."""
    return (
        f'server = "https://{registry}"\n\n[host."{mirror}"]\n'
        '  capabilities = ["pull", "resolve"]\n'
    )


def _node(node: KindNode, image: str | None) -> dict[str, Any]:
    return {
        "role": node.role,
        **({"image": image} if image else {}),
        **({"labels": dict(node.labels)} if node.labels else {}),
        "extraMounts": [mount.model_dump(mode="json") for mount in node.mounts],
        "extraPortMappings": [port.model_dump(mode="json") for port in node.ports],
    }


def archive_digest(path: Path) -> str:
    """A digest that changes with any layer or setting of an archive's images, whatever packs it."""
    try:
        with tarfile.open(path) as archive:
            for name in ("index.json", "manifest.json"):
                try:
                    file = archive.extractfile(name)
                except KeyError:
                    continue
                if file is not None:
                    # Both kinds of index name everything else in the archive by its digest.
                    index = json.dumps(json.load(file), sort_keys=True, separators=(",", ":"))
                    return f"sha256:{hashlib.sha256(index.encode()).hexdigest()}"
    except (OSError, tarfile.TarError, ValueError) as error:
        raise InvalidInputError(
            f"{path} cannot be read as an image archive.",
            reason=f"{error}.",
            hint="Name an OCI archive, or one from `docker save`.",
        ) from error
    raise InvalidInputError(
        f"{path} is not an image archive.",
        reason="It has neither index.json nor manifest.json.",
        hint="Name an OCI archive, or one from `docker save`.",
    )


@dataclass(frozen=True, slots=True)
class NodeContainer:
    """A container that is a node."""

    name: str
    role: Literal["control-plane", "worker"]
    image: str
    running: bool


class KindCommands:
    """The commands, looked up when they are first needed."""

    def __init__(self, engine: str = "docker") -> None:
        self._engine = engine
        self._kind: str | None = None

    async def create(self, config: dict[str, Any], seconds: float, show: Show) -> None:
        """Create a cluster and wait until its control plane is ready."""
        with TemporaryDirectory() as folder:
            file = Path(folder) / "config.yaml"
            write_private(file, yaml.safe_dump(config).encode())
            await self._kind_command(
                "create",
                "cluster",
                f"--config={file}",
                # The user's own kubeconfig is not touched.
                f"--kubeconfig={Path(folder) / 'kubeconfig'}",
                f"--wait={seconds:.0f}s",
                show=show,
            )

    async def delete(self, name: str) -> None:
        """Delete a cluster, or its remains."""
        with TemporaryDirectory() as folder:
            kubeconfig = f"--kubeconfig={Path(folder) / 'kubeconfig'}"
            await self._kind_command("delete", "cluster", f"--name={name}", kubeconfig)

    async def kubeconfig(self, name: str) -> str:
        """The administrator's kubeconfig."""
        return await self._kind_command("get", "kubeconfig", f"--name={name}")

    async def nodes(self, name: str) -> list[NodeContainer]:
        """The containers of a cluster, including stopped ones, without a load balancer."""
        names = await self._engine_command(
            "ps", "--all", "--quiet", f"--filter=label={_CLUSTER_LABEL}={name}"
        )
        if not names.split():
            return []
        described = json.loads(await self._engine_command("inspect", *names.split()))
        nodes = (_container(container) for container in cast("list[dict[str, Any]]", described))
        return sorted((node for node in nodes if node is not None), key=lambda node: node.name)

    async def start(
        self, name: str, nodes: Sequence[NodeContainer], seconds: float, show: Show
    ) -> None:
        """Start containers that stopped, and wait until their cluster's API server answers."""
        stopped = [node.name for node in nodes if not node.running]
        if stopped:
            await self._engine_command("start", *stopped)
            await _wait_until_served(await self.kubeconfig(name), seconds, show)

    async def load(self, name: str, image: str, show: Show) -> None:
        """Load an image into every node: an archive, or a reference that the engine has."""
        what = "image-archive" if is_archive(image) else "docker-image"
        await self._kind_command("load", what, image, f"--name={name}", show=show)

    async def image_id(self, reference: str) -> str:
        """The digest of an image that the engine has."""
        return (
            await self._engine_command("image", "inspect", "--format={{.Id}}", reference)
        ).strip()

    async def set_mirror(self, node: NodeContainer, registry: str, mirror: str | None) -> None:
        """Have a node pull a registry's images from a mirror, or, with None, no longer."""
        folder = f"{MIRRORS}/{registry}"
        if mirror is None:
            await self._engine_command("exec", node.name, "rm", "-rf", folder)
            return
        await self._engine_command("exec", node.name, "mkdir", "-p", folder)
        with TemporaryDirectory() as local:
            file = Path(local) / "hosts.toml"
            file.write_text(hosts_file(registry, mirror))
            await self._engine_command("cp", str(file), f"{node.name}:{folder}/hosts.toml")

    async def _kind_command(self, *arguments: str, show: Show | None = None) -> str:
        if self._kind is None:
            self._kind = shutil.which("kind") or str(await Binaries().path(KIND))
        # kind has to use the engine that we look into.
        variables = {**os.environ, "KIND_EXPERIMENTAL_PROVIDER": self._engine}
        return await _run([self._kind, *arguments], variables, show)

    async def _engine_command(self, *arguments: str) -> str:
        command = shutil.which(self._engine)
        if command is None:
            raise UnfitMachineError(
                f"There is no {self._engine} command.",
                reason="kind's nodes are containers.",
                hint="Install a container engine, or choose the target process.",
            )
        return await _run([command, *arguments], dict(os.environ), None)


def is_archive(image: str) -> bool:
    """Whether an image is the path of a file, and no reference."""
    return Path(image).is_file()


def _container(described: dict[str, Any]) -> NodeContainer | None:
    role: str = described["Config"]["Labels"].get(_ROLE_LABEL, "")
    if role not in {"control-plane", "worker"}:
        return None
    return NodeContainer(
        name=described["Name"].removeprefix("/"),
        role="worker" if role == "worker" else "control-plane",
        image=described["Config"]["Image"],
        running=described["State"]["Running"],
    )


async def _wait_until_served(kubeconfig: str, seconds: float, show: Show) -> None:
    options = ClientOptions(timeout=_ANSWER_SECONDS, connect_timeout=_ANSWER_SECONDS)
    async with Client(Config.from_kubeconfig(kubeconfig.encode()), options=options) as client:

        async def reason() -> str | None:
            try:
                await client.get(Namespace, "kube-system")
            except ClientError as error:
                return str(error)
            return None

        await wait_for("the API server of the kind cluster", reason, seconds, show)


async def _run(command: Sequence[str], variables: dict[str, str], show: Show | None) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        env=variables,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Our caller passes Ctrl-C on.
        process_group=0,
        preexec_fn=default_signals(),
    )
    assert process.stdout is not None and process.stderr is not None  # noqa: PT018, S101
    try:
        output, errors = await asyncio.gather(
            process.stdout.read(), _lines(process.stderr, show or (lambda _: None))
        )
        status = await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
            await process.wait()
    if status != 0:
        name = Path(command[0]).name
        raise NotReadyError(
            f"{name} {' '.join(command[1:3])} failed.",
            reason="\n".join(errors[-_LAST_LINES:]) or f"exit status {status}",
        )
    return output.decode()


async def _lines(stream: asyncio.StreamReader, show: Show) -> list[str]:
    lines: list[str] = []
    async for raw in stream:
        line = raw.decode(errors="replace").strip()
        if line:
            lines.append(line)
            show(line)
    return lines
