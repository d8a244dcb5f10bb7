"""Management clusters that are lost or left, with providers and an endpoint that stays."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from capelin.client import Client, Config
from capelin.testing.managers import running
from capelin.testing.waiting import until
from capelin_control_plane.api import Status
from capelin_control_plane.backends.pods import PodsBackend
from capelin_control_plane.backup.destinations import Stores
from capelin_control_plane.backup.manifests import BACKUP_ANNOTATION
from capelin_control_plane.desired.control_plane import RESTORE_ANNOTATION
from capelin_control_plane.reconciler import CapelinControlPlaneReconciler

from tests.s3.versitygw import BUCKET, S3Server

from .conftest import prepared
from .hosted import Hosted
from .kind_cluster import KindCluster, kind_cluster
from .machines import docker
from .release_images import archive_of, image_of

PROVIDER = "capelin-control-plane"
_NODE_PORTS = range(30000, 32768)
_PIECE = 64 << 10


def load_image(kind: KindCluster) -> str:
    """Load the image of the provider if it is missing, and return its name."""
    name = image_of(PROVIDER)
    if not kind.has_image(name):
        kind.load_archive(archive_of(PROVIDER))
    return name


@asynccontextmanager
async def provider(hosted: Hosted, stores: Stores, image: str) -> AsyncGenerator[None]:
    """The provider with backups, in this process."""
    config = Config.from_kubeconfig(hosted.kind.kubeconfig)
    backend = PodsBackend(Client(config), restore_image=image)
    reconciler = CapelinControlPlaneReconciler({"Pods": backend}, stores=stores)
    async with running(reconciler, config=config, namespace=hosted.namespace):
        yield


@asynccontextmanager
async def management_cluster(folder: Path) -> AsyncGenerator[KindCluster]:
    """A new management cluster, which is deleted with all its data."""
    async with empty_cluster(folder) as cluster:
        await prepared(cluster, folder)
        yield cluster


@asynccontextmanager
async def empty_cluster(folder: Path) -> AsyncGenerator[KindCluster]:
    """A new cluster without the kinds and images of the tests."""
    await asyncio.to_thread(folder.mkdir)
    context = kind_cluster(f"lost-{uuid4().hex[:6]}", folder)
    cluster = await asyncio.to_thread(context.__enter__)
    try:
        yield cluster
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


def destination(server: S3Server | None) -> dict[str, object]:
    """The destination of backups: a bucket, or a folder."""
    if server is None:
        return {"folder": "etcd"}
    s3 = {
        "endpoint": server.endpoint,
        "bucket": BUCKET,
        "credentials": {"name": "credentials"},
        "caBundle": server.ca,
    }
    return {"s3": s3}


async def backed_up(hosted: Hosted) -> str:
    """Take a backup, and return its name."""
    requested = datetime.now(UTC).replace(microsecond=0)
    await hosted.annotate(BACKUP_ANNOTATION, requested.isoformat())

    async def name() -> str | None:
        last = ((await hosted.get()).status or Status()).backup
        return last.name if last is not None and last.time >= requested else None

    return await until(name, within=120)


async def is_restored(hosted: Hosted) -> bool:
    return RESTORE_ANNOTATION not in (await hosted.get()).metadata.annotations


@dataclass
class PortableEndpoint:
    """An address that leads to one management cluster, like a DNS name or a load balancer."""

    host: str
    port: int
    _node: str | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])

    @property
    def spec(self) -> dict[str, object]:
        """The value of `spec.controlPlaneEndpoint`."""
        return {"host": self.host, "port": self.port}

    async def lead_to(self, kind: KindCluster) -> None:
        """Send new connections to a management cluster, and end the others."""
        template = "{{.NetworkSettings.Networks.kind.IPAddress}}"
        address = await docker("inspect", f"--format={template}", kind.node)
        self._node = address.strip()
        for writer in self._writers:
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection."""
        if self._node is None:
            writer.close()
            return
        with suppress(OSError):
            inner_reader, inner_writer = await asyncio.open_connection(self._node, self.port)
            both = {writer, inner_writer}
            self._writers |= both
            try:
                await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))
            finally:
                self._writers -= both
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def portable_endpoint() -> AsyncGenerator[PortableEndpoint]:
    """An endpoint at the address of this machine in the network of kind clusters."""
    networks = json.loads(await docker("network", "inspect", "kind"))
    gateways = [config.get("Gateway", "") for config in networks[0]["IPAM"]["Config"]]
    host = next(gateway for gateway in gateways if "." in gateway)
    endpoint = PortableEndpoint(host, _free_node_port(host))
    server = await asyncio.start_server(endpoint.serve, endpoint.host, endpoint.port)
    try:
        yield endpoint
    finally:
        server.close()


def _free_node_port(host: str) -> int:
    """A port that a Service of type NodePort may have, and that is free here."""
    while True:
        port = random.choice(_NODE_PORTS)  # noqa: S311
        with suppress(OSError), socket.socket() as probe:
            probe.bind((host, port))
            return port
