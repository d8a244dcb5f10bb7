"""Node images of kind for another Kubernetes version, without a registry."""

import io
import tarfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256

from .kind_cluster import IMAGE
from .machines import docker

_DOCKERFILE = f"""
FROM {IMAGE}
COPY programs /usr/bin/
COPY version /kind/version
COPY tag-images /kind/tag-images
COPY tag-images.conf /etc/systemd/system/containerd.service.d/50-tag-images.conf
"""
# The kubelet starts after containerd, so it finds the names.
_UNIT = "[Service]\nExecStartPost=/kind/tag-images\n"
_SCRIPT = """#!/bin/sh -e
images="ctr --namespace=k8s.io images"
tag() { $images tag --force "$($images list --quiet | grep -m1 "$1")" "$2"; }
"""


@asynccontextmanager
async def node_image(
    version: str, programs: Mapping[str, bytes], names: Mapping[str, str]
) -> AsyncGenerator[str]:
    """A node image with the kubelet and kubeadm of another version.

    Args:
        version: The version.
        programs: The programs.
        names: More names of images of the node, by a part of the name that the image has.
    """
    script = _SCRIPT + "".join(f'tag "{part}" "{name}"\n' for part, name in names.items())
    files = {
        "Dockerfile": _DOCKERFILE.encode(),
        "version": version.encode(),
        "tag-images": script.encode(),
        "tag-images.conf": _UNIT.encode(),
        **{f"programs/{name}": content for name, content in programs.items()},
    }
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    content = context.getvalue()
    tag = f"localhost/capelin-node-{sha256(content).hexdigest()[:12]}:{version}"
    await docker("build", "--quiet", f"--tag={tag}", "-", content=content)
    try:
        yield tag
    finally:
        await docker("rmi", tag)
