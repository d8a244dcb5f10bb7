"""Opens the store of a control plane's backups, within the limits of the administrator."""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
from capelin.api.core import Secret
from capelin.client import (
    AllowedEndpoint,
    Client,
    CredentialError,
    Destinations,
    EndpointRefusedError,
    allowed_destinations,
    guarded_connector,
    tls_context,
)
from capelin.provider import Blocked

from capelin_control_plane.api import BackupDestination, S3Destination
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backup.s3 import TIMEOUT, Bucket, S3Credentials, S3Store
from capelin_control_plane.backup.stores import FolderStore, Store, Workers

_FIELD: Final = "spec.etcd.backup.destination.s3"
_THREADS: Final = 4
_ENTRY: Final = re.compile(rb"[!-~]{1,4096}")


def destinations_of(endpoint: str, allowed: Sequence[AllowedEndpoint]) -> Destinations | None:
    """The addresses that connections to an endpoint may have. None if the administrator named it.

    Raises:
        Blocked: the administrator does not allow the endpoint.
    """
    try:
        return allowed_destinations(endpoint, allowed)
    except EndpointRefusedError:
        raise Blocked(
            Reason.BACKUPS_NOT_ALLOWED,
            f"{_FIELD}.endpoint: --backup-endpoints of the provider does not allow {endpoint}",
        ) from None


class Stores:
    """Opens stores in the folder and at the endpoints of the administrator."""

    def __init__(self, root: Path | None = None, endpoints: Sequence[AllowedEndpoint] = ()) -> None:
        self._root, self._endpoints = root, endpoints
        self._workers = Workers(_THREADS)

    def folder(self, destination: BackupDestination, namespace: str, cluster: str) -> Path | None:
        """The folder of a cluster's backups. None if they are elsewhere.

        Raises:
            Blocked: the administrator allows no folders.
        """
        if destination.folder is None:
            return None
        if self._root is None:
            raise Blocked(Reason.BACKUPS_NOT_ALLOWED, "no --backup-folder is set")
        return self._root / namespace / destination.folder / cluster

    @asynccontextmanager
    async def open(
        self, client: Client, destination: BackupDestination, namespace: str, cluster: str
    ) -> AsyncGenerator[Store]:
        """The store of a cluster's backups.

        Raises:
            Blocked: the destination is not allowed, or lacks something.
        """
        folder = self.folder(destination, namespace, cluster)
        if self._root is not None and folder is not None:
            yield FolderStore(self._root, folder.relative_to(self._root), self._workers)
            return
        s3 = destination.s3
        if s3 is None:
            raise Blocked(Reason.INVALID_CONFIGURATION, "spec.etcd.backup.destination is empty")
        destinations = destinations_of(s3.endpoint, self._endpoints)
        credentials = await _credentials(client, s3.credentials.name, namespace)
        async with s3_store(s3, namespace, cluster, credentials, destinations) as store:
            yield store

    def close(self) -> None:
        """End the threads. Those that hang do not keep the process from ending."""
        self._workers.close()


@asynccontextmanager
async def s3_store(
    s3: S3Destination,
    namespace: str,
    cluster: str,
    credentials: S3Credentials,
    destinations: Destinations | None = None,
) -> AsyncGenerator[Store]:
    """The store of a cluster's backups in a bucket.

    Args:
        s3: The bucket.
        namespace: The namespace of the cluster.
        cluster: Its name.
        credentials: The key of the bucket.
        destinations: The addresses that connections may have. None: any.

    Raises:
        Blocked: the CAs of the server cannot be read.
    """
    prefix = f"{s3.prefix}/" if s3.prefix else ""
    bucket = Bucket(
        endpoint=s3.endpoint.rstrip("/"),
        region=s3.region,
        name=s3.bucket,
        folder=f"{prefix}{namespace}/{cluster}/",
    )
    ca = None if s3.ca_bundle is None else s3.ca_bundle.encode()
    try:
        # It reads the CAs of the system, which takes time.
        tls = await asyncio.to_thread(tls_context, ca, None, None)
    except CredentialError:
        raise _not_usable("caBundle: it has to contain certificates in PEM") from None
    async with aiohttp.ClientSession(
        connector=guarded_connector(destinations, tls=tls),
        timeout=TIMEOUT,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        yield S3Store(session, bucket, credentials)


async def _credentials(client: Client, name: str, namespace: str) -> S3Credentials:
    secret = await client.find(Secret, name, namespace)
    if secret is None:
        raise _not_usable(f"credentials: no Secret {name} exists in the namespace")

    def entry(key: str, *, optional: bool = False) -> str:
        content = secret.data.get(key, b"").strip()
        if not _ENTRY.fullmatch(content) and not (optional and not content):
            raise _not_usable(f"credentials: Secret {name} has no usable entry {key}")
        return content.decode("ascii")

    return S3Credentials(
        entry("AWS_ACCESS_KEY_ID"),
        entry("AWS_SECRET_ACCESS_KEY"),
        entry("AWS_SESSION_TOKEN", optional=True) or None,
    )


def _not_usable(message: str) -> Blocked:
    return Blocked(Reason.BACKUP_DESTINATION_NOT_USABLE, f"{_FIELD}.{message}")
