"""Pure: the configuration of a kind cluster and of registry mirrors, and digests of archives."""

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any, Literal

from capelin.api import DescribedModel, Port
from capelin.errors import InvalidInputError

MIRRORS = "/etc/containerd/certs.d"
"""Where containerd looks for a registry's mirrors each time it pulls."""


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
