"""Clients of workload clusters, made from their kubeconfig Secrets and reused."""

import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import cast

from capelin.api.core import Secret
from capelin.backoff import exponential_delay
from capelin.client.client import Client
from capelin.client.config import Config
from capelin.client.destinations import Destinations
from capelin.client.errors import CircuitOpen, ConfigError, NotFound, Unreachable
from capelin.client.transport import WORKLOAD_MAX_BYTES, ClientOptions

log = logging.getLogger(__name__)

WORKLOAD_OPTIONS = ClientOptions(timeout=5.0, connect_timeout=5.0)
"""Short timeouts: a silent workload cluster holds up a worker that other clusters need."""

Clock = Callable[[], float]

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_IDLE_SECONDS = 900.0
"""A client without a use for this long is closed: its cluster may be deleted."""
_SLOW = 0.5
"""Part of the timeout after which a response counts as slow."""


@dataclass(slots=True)
class Circuit:
    """Pauses requests to a cluster that does not answer, and keeps its last error."""

    clock: Clock
    last_error: Unreachable | None = None
    """Kept after the pause, until a request succeeds."""
    _failures: int = 0
    _until: float = 0.0

    @property
    def remaining(self) -> float:
        """The remaining seconds of a pause."""
        return 0.0 if self.last_error is None else max(0.0, self._until - self.clock())

    def failed(self, error: Unreachable) -> None:
        """Pause requests, twice as long each time. Concurrent failures count once."""
        if self.remaining:
            return
        self.last_error = error
        self._failures += 1
        delay = exponential_delay(self._failures, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
        self._until = self.clock() + delay

    def succeeded(self) -> None:
        self.last_error, self._failures = None, 0


@dataclass(slots=True)
class _Entry:
    source: str
    """The UID of the Secret and a hash of its kubeconfig."""
    circuit: Circuit
    client: Client = field(init=False)
    users: int = 0
    used: float = 0.0
    """The time of its last use. The entries are in this order."""
    slow: bool = False
    """Whether a response took long since the last use of the client."""
    is_tried: bool = False
    """Whether one user is testing if the cluster answers again."""

    def mark_slow(self) -> None:
        self.slow = True


class WorkloadClients:
    """One client per workload cluster, replaced when its kubeconfig changes.

    A cluster that does not answer, or takes more than half of the timeout, gets no requests for a
    while: 1 s at first and twice as long each time, up to 30 s. Then one user tries it, and the
    others wait for the result. So it delays its own objects only.

    Args:
        client: Reads the secrets in the management cluster.
        manager: The field manager of the clients. Default: that of `client`.
        options: Rate limits, timeouts and bounds of the clients. By default, responses of 16 MiB
            and no loopback and link-local addresses but those of `CAPELIN_ALLOWED_NETWORKS`.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        client: Client,
        *,
        manager: str | None = None,
        options: ClientOptions = WORKLOAD_OPTIONS,
        clock: Clock = time.monotonic,
    ) -> None:
        self._client = client
        self._manager = manager or client.manager
        size = WORKLOAD_MAX_BYTES if options.max_bytes is None else options.max_bytes
        destinations = options.destinations or Destinations.from_environ()
        self._options = replace(options, max_bytes=size, destinations=destinations)
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._retired: list[_Entry] = []
        self._clock = clock

    @asynccontextmanager
    async def client(
        self, cluster: str, namespace: str, *, secret: Secret | None = None
    ) -> AsyncGenerator[Client]:
        """The client of a workload cluster, with the current kubeconfig of its Secret.

        It stays open inside the `async with`, even if the Secret changes meanwhile. Pass the
        Secret if you have just read it.

        Raises:
            NotFound: The kubeconfig Secret does not exist (yet).
            ConfigError: The kubeconfig is unusable, or names programs or files here.
            CircuitOpen: The cluster did not answer before, and its pause is not over.
        """
        name, key = f"{cluster}-kubeconfig", (namespace, cluster)
        if secret is None:
            try:
                secret = await self._client.get(Secret, name, namespace)
            except NotFound:
                await self.drop(cluster, namespace)
                raise
        entry = self._entry_for(key, secret)
        error, pause = entry.circuit.last_error, entry.circuit.remaining
        if error is not None:
            if pause or entry.is_tried:
                raise CircuitOpen(str(error), retry_seconds=pause or _FIRST_PAUSE)
            # Each user would wait for a silent cluster, and other clusters need the workers.
            entry.is_tried = True
        entry.users += 1
        try:
            await self._close_unused()
            yield entry.client
        except Exception as raised:
            address = entry.client.config.server.address
            self._judge(key, entry, _unreachable(raised, address))
            raise
        else:
            self._judge(key, entry, None)
        finally:
            entry.users -= 1
            if error is not None:
                entry.is_tried = False
            await self._close_unused()

    async def drop(self, cluster: str, namespace: str) -> None:
        """Close the client of a deleted cluster as soon as it is idle."""
        self._retire((namespace, cluster))
        await self._close_unused()

    async def close(self) -> None:
        """Close all clients, even those in use."""
        entries = [*self._entries.values(), *self._retired]
        self._entries.clear()
        self._retired.clear()
        for entry in entries:
            await entry.client.close()

    def _entry_for(self, key: tuple[str, str], secret: Secret) -> _Entry:
        """The client for the Secret's content. Not async, so that it creates no client twice."""
        content = secret.data.get("value", b"")
        source = f"{secret.uid} {hashlib.sha256(content).hexdigest()}"
        entry = self._entries.get(key)
        if entry is None or entry.source != source:
            entry = _Entry(source, Circuit(self._clock))
            entry.client = self._connect(secret, content, entry.mark_slow)
            self._retire(key)
        # A dict keeps the order of insertion: the least recently used is the first.
        entry.used = self._clock()
        self._entries.pop(key, None)
        self._entries[key] = entry
        return entry

    def _judge(self, key: tuple[str, str], entry: _Entry, error: Unreachable | None) -> None:
        """Open or close a cluster's circuit after a use of its client."""
        circuit = entry.circuit
        if error is None and entry.slow:
            error = Unreachable("its API server takes too long to answer")
        entry.slow = False
        if error is None or self._entries.get(key) is not entry:
            circuit.succeeded()
        elif not circuit.remaining:
            circuit.failed(error)
            log.info("No requests to cluster %s/%s for %.0f s: %s", *key, circuit.remaining, error)

    def _connect(self, secret: Secret, content: bytes, on_slow: Callable[[], None]) -> Client:
        """A client that reports slow responses."""
        limit = _SLOW * self._options.timeout

        @contextmanager
        def measured() -> Generator[None]:
            start = self._clock()
            try:
                yield
            finally:
                if self._clock() - start > limit:
                    on_slow()

        options = replace(self._options, around=measured)
        where = f"secret {secret.namespace}/{secret.name}"
        if not content:
            raise ConfigError(f"{where} holds no kubeconfig: its key value is missing or empty")
        try:
            config = Config.from_secret(content)
            return Client(config, manager=self._manager, options=options)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None

    def _retire(self, key: tuple[str, str]) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._retired.append(entry)

    async def _close_unused(self) -> None:
        since = self._clock() - _IDLE_SECONDS
        for key, _ in list(takewhile(lambda item: item[1].used < since, self._entries.items())):
            self._retire(key)
        unused = [entry for entry in self._retired if entry.users == 0]
        self._retired = [entry for entry in self._retired if entry.users > 0]
        for entry in unused:
            await entry.client.close()


def _unreachable(error: BaseException, address: str) -> Unreachable | None:
    """The exception, or the first of a task group, that shows that this server did not answer.

    The block may also have sent requests to other servers.
    """
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        found = (_unreachable(inner, address) for inner in group.exceptions)
        return next(filter(None, found), None)
    return error if isinstance(error, Unreachable) and error.server == address else None
