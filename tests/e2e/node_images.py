"""Node images of kind with other programs and more images, without a registry."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from .kind_cluster import IMAGE
from .machines import docker

_DOCKERFILE = f"""
FROM {IMAGE}
COPY programs /usr/bin/
COPY version /kind/version
COPY images /kind/images/
COPY add-images /kind/add-images
COPY add-images.conf /etc/systemd/system/containerd.service.d/50-add-images.conf
"""
# The kubelet starts after containerd, so it finds the images.
_UNIT = "[Service]\nExecStartPost=/kind/add-images\nTimeoutStartSec=300\n"
_SCRIPT = """#!/bin/sh -e
images="ctr --namespace=k8s.io images"
tag() { $images tag --force "$($images list --quiet | grep -m1 "$1")" "$2"; }
for archive in /kind/images/*.tar; do
    [ ! -e "$archive" ] || $images import --label=io.cri-containerd.pinned=pinned "$archive"
    rm -f "$archive"
done
"""


@asynccontextmanager
async def node_image(
    version: str,
    programs: Mapping[str, bytes] = {},
    names: Mapping[str, str] = {},
    images: Mapping[str, bytes] = {},
) -> AsyncGenerator[str]:
    """A node image of kind with changes.

    Args:
        version: Its Kubernetes version.
        programs: Programs that it has instead of its own.
        names: More names of images of the node, by a part of the name that the image has.
        images: The archives of more images, by file names without a suffix.
    """
    script = _SCRIPT + "".join(f'tag "{part}" "{name}"\n' for part, name in names.items())
    files = {
        "Dockerfile": _DOCKERFILE.encode(),
        "version": version.encode(),
        "add-images": script.encode(),
        "add-images.conf": _UNIT.encode(),
        **{f"programs/{name}": content for name, content in programs.items()},
        **{f"images/{name}.tar": content for name, content in images.items()},
    }
    tag = f"localhost/capelin-node-{uuid4().hex[:12]}:{version}"
    with TemporaryDirectory() as context:
        _write(Path(context), files)
        await docker("build", "--quiet", f"--tag={tag}", context)
    try:
        yield tag
    finally:
        await docker("rmi", tag)


def _write(context: Path, files: Mapping[str, bytes]) -> None:
    for folder in ("programs", "images"):
        (context / folder).mkdir()
    for name, content in files.items():
        (context / name).write_bytes(content)
        (context / name).chmod(0o755)
