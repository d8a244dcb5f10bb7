"""A TCP relay: one address in front of several servers, run as its own process.

It imports only the standard library, so that its process needs a few MiB:
`python -I -S relay.py --listen 127.64.0.5:6443 --targets FILE --control SOCKET`.
The targets file has one `host:port` a line. After changing the file, write a line to the control
socket. The relay reads the file again and answers with the number of open connections of each
target, so that the caller can wait until a removed target has none.
"""

import argparse
import contextlib
import errno
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

_CHUNK = 64 * 1024
_BACKLOG = 1024
_PAUSE_SECONDS = 0.2
_IDLE_SECONDS = 120.0
_HOLD_SECONDS = 8.0
"""How long a client waits for a server that is starting. Clients end a TLS handshake after 10 s."""
_RETRY_SECONDS = 0.1
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

Target = tuple[str, int]
Handler = Callable[[int], None]


def parse_target(text: str) -> Target:
    """`host:port`, with brackets around an IPv6 address."""
    host, _, port = text.strip().rpartition(":")
    return host.strip("[]"), int(port)


def read_targets(path: Path) -> list[Target]:
    """The targets in a file. Empty if the file does not exist."""
    with contextlib.suppress(FileNotFoundError):
        return [parse_target(line) for line in path.read_text().splitlines() if line.strip()]
    return []


@contextlib.contextmanager
def reachable(path: Path) -> Generator[str]:
    """A short path to bind or connect a Unix socket, for a path of any length."""
    # The address of a Unix socket has at most 107 bytes.
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


class _Flow:
    """Copies bytes one way between two sockets, with a bounded buffer."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.buffer = b""
        self.ended = False

    @property
    def done(self) -> bool:
        return self.ended and not self.buffer

    def receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.buffer = self.source.recv(_CHUNK)
            self.ended = not self.buffer
            self.send()

    def send(self) -> None:
        """Send the buffer, and the end of the stream after it."""
        if self.buffer:
            with contextlib.suppress(BlockingIOError):
                self.buffer = self.buffer[self.sink.send(self.buffer) :]
        if self.done:
            self.sink.shutdown(socket.SHUT_WR)


def _events(incoming: _Flow, outgoing: _Flow) -> int:
    reads = not incoming.ended and not incoming.buffer
    return (selectors.EVENT_READ if reads else 0) | (
        selectors.EVENT_WRITE if outgoing.buffer else 0
    )


class _Connection:
    """A client's connection and its connection to a target."""

    def __init__(self, relay: "Relay", client: socket.socket, targets: list[Target]) -> None:
        self.relay = relay
        self.client = client
        self.untried = targets
        self.target: Target | None = None
        self.server: socket.socket | None = None
        self.flows: tuple[_Flow, _Flow] | None = None
        self.used_at = time.monotonic()
        relay.connections.add(self)
        self.try_next()

    def retry(self, targets: list[Target]) -> None:
        """Try all targets again."""
        self.untried = targets
        self.try_next()

    def try_next(self) -> None:
        """Connect to the next target that has not refused. If none is left, wait for one."""
        self._drop_server()
        if not self.untried:
            self.relay.hold(self)
            return
        self.target = self.untried.pop(0)
        family = socket.AF_INET6 if ":" in self.target[0] else socket.AF_INET
        try:
            self.server = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self.close()
            self.relay.pause(error)
            return
        self.server.settimeout(0)
        self.relay.open[self.target] += 1
        match self.server.connect_ex(self.target):
            case 0:
                self._established()
            case errno.EINPROGRESS:
                self.relay.watch(self.server, selectors.EVENT_WRITE, self._connected)
            case _:
                self.try_next()

    def _connected(self, _events: int) -> None:
        assert self.server is not None  # noqa: S101  only a socket that exists becomes writable
        if self.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.try_next()
        else:
            self._established()

    def _established(self) -> None:
        assert self.server is not None  # noqa: S101
        self.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.flows = (_Flow(self.client, self.server), _Flow(self.server, self.client))
        self._wait()

    def _client_ready(self, events: int) -> None:
        assert self.flows is not None  # noqa: S101  nothing is relayed before a server accepts
        up, down = self.flows
        self._transfer(events, up, down)

    def _server_ready(self, events: int) -> None:
        assert self.flows is not None  # noqa: S101
        up, down = self.flows
        self._transfer(events, down, up)

    def _transfer(self, events: int, incoming: _Flow, outgoing: _Flow) -> None:
        self.used_at = time.monotonic()
        try:
            if events & selectors.EVENT_READ:
                incoming.receive()
            if events & selectors.EVENT_WRITE:
                outgoing.send()
        except OSError:
            self.close()
        else:
            self._wait()

    def _wait(self) -> None:
        """Watch for reading if the buffer is empty, and for writing if it is not."""
        assert self.flows is not None  # noqa: S101
        up, down = self.flows
        if up.done and down.done:
            self.close()
            return
        self.relay.watch(up.source, _events(up, down), self._client_ready)
        self.relay.watch(down.source, _events(down, up), self._server_ready)

    def _drop_server(self) -> None:
        if self.server is not None and self.target is not None:
            self.relay.watch(self.server, 0, None)
            self.server.close()
            self.server = None
            self.relay.open[self.target] -= 1

    def close(self) -> None:
        self.relay.connections.discard(self)
        self.relay.held.pop(self, None)
        self._drop_server()
        self.relay.watch(self.client, 0, None)
        self.client.close()


class Relay:
    """Accepts connections and forwards each, in turn, to a target that accepts it."""

    def __init__(
        self, listen: Target, targets: Path, control: Path, hold_seconds: float = _HOLD_SECONDS
    ) -> None:
        self.open: Counter[Target] = Counter()
        self.connections: set[_Connection] = set()
        self.held: dict[_Connection, None] = {}
        """The connections that no target has accepted yet."""
        self._hold_seconds = hold_seconds
        self._retry_at = 0.0
        self._paused_until: float | None = None
        self._selector = selectors.DefaultSelector()
        self._file = targets
        self._targets = read_targets(targets)
        self._turn = 0
        family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        self._listener = socket.create_server(listen, family=family, backlog=_BACKLOG)
        self._control = socket.socket(socket.AF_UNIX)
        control.unlink(missing_ok=True)
        with reachable(control) as address:
            self._control.bind(address)
        control.chmod(0o600)
        self._control.listen()
        for server in (self._listener, self._control):
            server.settimeout(0)
        self._watch_servers()

    def watch(self, sock: socket.socket, events: int, handler: Handler | None) -> None:
        """Call `handler` when `sock` is ready for `events`. 0 stops watching."""
        known = self._selector.get_map().get(sock)
        if not events:
            if known is not None:
                self._selector.unregister(sock)
        elif known is None:
            self._selector.register(sock, events, handler)
        elif known.events != events or known.data != handler:
            self._selector.modify(sock, events, handler)

    def run(self) -> None:
        while True:
            self._resume()
            self._retry()
            for key, events in self._selector.select(self._timeout()):
                # An earlier handler of this round may have closed this socket.
                if self._selector.get_map().get(key.fd) is key:
                    key.data(events)

    def hold(self, connection: _Connection) -> None:
        """Keep a connection open, and try again soon: a server may be starting."""
        self.held[connection] = None
        now = time.monotonic()
        if self._retry_at <= now:
            self._retry_at = now + _RETRY_SECONDS

    def _retry(self) -> None:
        now = time.monotonic()
        if not self.held or now < self._retry_at:
            return
        for connection in [*self.held]:
            if now - connection.used_at > self._hold_seconds:
                connection.close()
        for connection in [*self.held]:
            del self.held[connection]
            connection.retry([*self._targets])
            if connection in self.held:
                # All targets still refuse: they would refuse the others as well.
                break

    def pause(self, error: OSError) -> None:
        """Stop accepting for a moment when descriptors or memory are exhausted."""
        if error.errno not in _EXHAUSTED:
            return
        # The connection that has been idle for the longest time makes room for new clients.
        oldest = min(self.connections, key=lambda connection: connection.used_at, default=None)
        if oldest is not None and time.monotonic() - oldest.used_at > _IDLE_SECONDS:
            oldest.close()
        self._paused_until = time.monotonic() + _PAUSE_SECONDS
        for server in (self._listener, self._control):
            self.watch(server, 0, None)

    def _resume(self) -> None:
        if self._paused_until is not None and time.monotonic() >= self._paused_until:
            self._paused_until = None
            self._watch_servers()

    def _timeout(self) -> float | None:
        times = [] if self._paused_until is None else [self._paused_until]
        times += [self._retry_at] if self.held else []
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _watch_servers(self) -> None:
        for server, handler in ((self._listener, self._accept), (self._control, self._answer)):
            self.watch(server, selectors.EVENT_READ, handler)

    def _accept(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self.pause(error)
                return
            client.settimeout(0)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._turn += 1
            first = self._turn % max(1, len(self._targets))
            _Connection(self, client, self._targets[first:] + self._targets[:first])

    def _answer(self, _events: int) -> None:
        with contextlib.suppress(OSError):
            try:
                caller, _ = self._control.accept()
            except OSError as error:
                self.pause(error)
                return
            with caller:
                caller.settimeout(1)
                caller.recv(_CHUNK)
                self._targets = read_targets(self._file)
                self._retry_at = 0.0
                caller.sendall(json.dumps(self._status()).encode() + b"\n")

    def _status(self) -> dict[str, dict[str, int]]:
        names = {target: f"{target[0]}:{target[1]}" for target in (*self._targets, *self.open)}
        return {"connections": {names[target]: self.open[target] for target in sorted(names)}}


def main() -> None:
    parser = argparse.ArgumentParser(description="One address in front of several servers.")
    parser.add_argument("--listen", type=parse_target, required=True)
    parser.add_argument("--targets", type=Path, required=True)
    parser.add_argument("--control", type=Path, required=True)
    parser.add_argument("--hold", type=float, default=_HOLD_SECONDS)
    options = parser.parse_args()
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        relay = Relay(options.listen, options.targets, options.control, options.hold)
    except OSError as error:
        host, port = options.listen
        sys.exit(f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}")
    relay.run()


if __name__ == "__main__":
    main()
