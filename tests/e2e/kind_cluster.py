"""A kind cluster for tests with their images, or the reason why it is not available."""

import json
import os
import shutil
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .program_images import program_image

KIND = os.environ.get("CAPELIN_E2E_KIND", "kind")
"""The kind binary."""
IMAGE = os.environ.get(
    "CAPELIN_E2E_NODE_IMAGE",
    "kindest/node:v1.36.1@sha256:3489c7674813ba5d8b1a9977baea8a6e553784dab7b84759d1014dbd78f7ebd5",
)
"""The image of its nodes, of kind v0.32.0. One that was built without a registry serves as well."""
IMAGE_VERSION = IMAGE.partition("@")[0].rpartition(":")[2]
"""The Kubernetes version of that image."""
_CREATE_SECONDS = 300


def missing() -> str:
    """The missing requirements of these tests. Empty if they can run."""
    if shutil.which(KIND) is None:
        return f"no program {KIND}; install kind or name it in CAPELIN_E2E_KIND"
    engine = _output("docker", "version", "--format", "{{.Server.Version}}")
    if engine is None:
        return "no container engine answers `docker version`"
    if _output("docker", "image", "inspect", IMAGE) is None:
        return f"no image {IMAGE}; pull it, or name another one in CAPELIN_E2E_NODE_IMAGE"
    return ""


@dataclass(frozen=True)
class KindCluster:
    name: str
    kubeconfig: Path
    workers: int = 0
    """The nodes besides the one with the API server."""

    @property
    def nodes(self) -> list[str]:
        others = (f"{self.name}-worker{index or ''}" for index in (0, *range(2, self.workers + 1)))
        return [self.node, *(others if self.workers else ())]

    @property
    def node(self) -> str:
        return f"{self.name}-control-plane"

    def has_image(self, name: str) -> bool:
        listed = self.on_node("crictl", "images", "-o", "json")
        return any(name in (image.get("repoTags") or ()) for image in json.loads(listed)["images"])

    def load_program(self, name: str, program: Path, folder: Path) -> None:
        """Load an image with only one static binary."""
        archive = folder / "image.tar"
        archive.write_bytes(program_image(name, {f"usr/local/bin/{program.name}": program}))
        self.load_archive(archive)
        archive.unlink()

    def load_archive(self, archive: Path) -> None:
        """Load images from an archive as `docker save` writes it."""
        run(KIND, "load", "image-archive", "--name", self.name, str(archive))

    def tag_image(self, name: str, other: str) -> None:
        """Add a name to an image of the node."""
        self.on_node("ctr", "--namespace=k8s.io", "images", "tag", name, other)

    def on_node(self, *command: str, seconds: float = 60) -> str:
        return run("docker", "exec", self.node, *command, seconds=seconds)

    def kubectl(self, *arguments: str, seconds: float = 60) -> str:
        admin = "--kubeconfig=/etc/kubernetes/admin.conf"
        return self.on_node("kubectl", admin, *arguments, seconds=seconds)

    def kill_container(self, name: str, namespace: str) -> None:
        """Kill containers of the node, which its kubelet restarts."""
        label = f"--label=io.kubernetes.pod.namespace={namespace}"
        for found in self.on_node("crictl", "ps", f"--name=^{name}$", label, "--quiet").split():
            self.on_node("crictl", "stop", "--timeout=0", found)

    def kubelet_summary(self) -> Any:
        path = f"/api/v1/nodes/{self.node}/proxy/stats/summary"
        return json.loads(self.kubectl("get", "--raw", path))

    def left_in(self, namespace: str) -> list[str]:
        kinds = self.kubectl("api-resources", "--namespaced", "--verbs=list", "--output=name")
        listed = ",".join(kind for kind in kinds.split() if not kind.startswith("events"))
        names = self.kubectl("get", listed, f"--namespace={namespace}", "--output=name").split()
        volumes = json.loads(self.kubectl("get", "persistentvolumes", "--output=json"))["items"]
        names += [
            f"persistentvolume/{volume['metadata']['name']}"
            for volume in volumes
            if volume["spec"]["claimRef"]["namespace"] == namespace
        ]
        return sorted(names)


@contextmanager
def kind_cluster(
    name: str, folder: Path, workers: int = 0, mounts: Mapping[Path, str] = {}
) -> Generator[KindCluster]:
    """A new kind cluster.

    Args:
        name: Its name.
        folder: A folder for its kubeconfig.
        workers: The nodes besides the one with the API server.
        mounts: Folders of this machine that its nodes have, with their paths there.
    """
    kubeconfig, config = folder / "kubeconfig", folder / "kind.json"
    extra = [{"hostPath": str(path), "containerPath": there} for path, there in mounts.items()]
    roles = ("control-plane", *("worker" for _ in range(workers)))
    nodes = [{"role": role, "extraMounts": extra} for role in roles]
    content = {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": nodes}
    config.write_text(json.dumps(content))
    files = ("--config", str(config), "--kubeconfig", str(kubeconfig))
    create = ("create", "cluster", "--name", name, "--image", IMAGE, "--wait", "120s")
    try:
        run(KIND, *create, *files, seconds=_CREATE_SECONDS)
        yield KindCluster(name, kubeconfig, workers)
    finally:
        delete(name)


def copy_to(container: str, path: Path) -> None:
    """Copy a file to the same place in a node or another machine."""
    # Not `docker cp`, which ignores mounts.
    script = 'mkdir -p "$(dirname "$0")" && cat > "$0"'
    write = ("docker", "exec", "--interactive", container, "sh", "-c", script, str(path))
    subprocess.run(write, input=path.read_bytes(), check=True, timeout=60)


def delete(name: str) -> None:
    """Delete a cluster if it exists, without changes to any kubeconfig."""
    with TemporaryDirectory() as folder:
        none = str(Path(folder, "kubeconfig"))
        run(KIND, "delete", "cluster", "--name", name, "--kubeconfig", none)


def names() -> list[str]:
    return run(KIND, "get", "clusters").split()


def run(*command: str, seconds: float = 120) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-1000:]}")
    return done.stdout


def _output(*command: str) -> str | None:
    try:
        return run(*command, seconds=20)
    except (OSError, RuntimeError, subprocess.TimeoutExpired):
        return None
