"""The relay in its own process, between real sockets."""

import json
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import capelin_embedded.relay as relay_module
import pytest
from capelin_embedded.relay import parse_target, reachable, read_targets

HOST = "127.64.200.1"


class Upper:
    """A server that sends its name and then echoes data in upper case."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(f"{self.name}:".encode())
            while data := connection.recv(65536):
                connection.sendall(data.upper())

    def close(self) -> None:
        # `close` does not wake the thread that waits in accept.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


class RunningRelay:
    """A relay process and its control socket."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.targets = folder / "targets"
        self.control = folder / "control"
        with closing(socket.create_server((HOST, 0))) as probe:
            self.port = int(probe.getsockname()[1])
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", relay_module.__file__),
                *("--listen", f"{HOST}:{self.port}"),
                *("--targets", str(self.targets), "--control", str(self.control)),
                *options,
            ]
        )

    def reload(self) -> dict[str, int]:
        """Reload the targets. Returns the number of connections of each."""
        with socket.socket(socket.AF_UNIX) as asker, reachable(self.control) as address:
            asker.connect(address)
            asker.sendall(b"\n")
            return json.loads(asker.makefile().read())["connections"]

    def point_at(self, *servers: Upper) -> dict[str, int]:
        self.targets.write_text("".join(f"{server.address}\n" for server in servers))
        return self.reload()

    def connect(self) -> socket.socket:
        return socket.create_connection((HOST, self.port), timeout=10)

    def wait(self) -> None:
        while True:
            assert self.process.poll() is None
            with suppress(OSError):
                self.reload()
                return


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RunningRelay]:
    # Longer than the address of a Unix socket can be.
    folder = tmp_path / ("deep" * 20)
    folder.mkdir()
    running = RunningRelay(folder, "--hold", "1")
    running.wait()
    yield running
    running.process.terminate()
    running.process.wait(10)


@contextmanager
def upper(*names: str) -> Generator[list[Upper]]:
    servers = [Upper(name) for name in names]
    yield servers
    for server in servers:
        server.close()


def receive(connection: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        data = connection.recv(65536)
        assert data, f"the connection ended after {received!r}"
        received += data
    return received


def test_connections_alternate_between_the_targets(relay: RunningRelay) -> None:
    with upper("a", "b") as servers:
        relay.point_at(*servers)
        greetings: list[bytes] = []
        for _ in range(4):
            with relay.connect() as connection:
                greetings.append(receive(connection, 2))
        assert sorted(greetings) == [b"a:", b"a:", b"b:", b"b:"]


def test_a_target_that_refuses_connections_is_skipped(
    relay: RunningRelay,
) -> None:
    with upper("closed", "b") as (closed, b):
        relay.point_at(closed, b)
        closed.close()
        for _ in range(4):
            with relay.connect() as connection:
                assert receive(connection, 2) == b"b:"
        closed.listener = socket.create_server((HOST, 0))


def test_a_removed_target_keeps_its_connections(
    relay: RunningRelay,
) -> None:
    with upper("a", "b") as (a, b):
        relay.point_at(a)
        with relay.connect() as old:
            assert receive(old, 2) == b"a:"
            assert relay.point_at(b) == {a.address: 1, b.address: 0}
            with relay.connect() as new:
                assert receive(new, 2) == b"b:"
            old.sendall(b"still here")
            assert receive(old, 10) == b"STILL HERE"
        while relay.reload()[a.address]:
            pass


def test_a_slow_reader_receives_all_data(relay: RunningRelay) -> None:
    size = 8 * 1024 * 1024
    with upper("a") as servers:
        relay.point_at(*servers)
        with relay.connect() as connection:
            receive(connection, 2)
            writer = threading.Thread(target=connection.sendall, args=(b"x" * size,))
            writer.start()
            assert receive(connection, size) == b"X" * size
            writer.join()


def test_a_half_closed_connection_still_receives_data(relay: RunningRelay) -> None:
    with upper("a") as servers:
        relay.point_at(*servers)
        with relay.connect() as connection:
            connection.sendall(b"last bytes")
            connection.shutdown(socket.SHUT_WR)
            assert receive(connection, 12) == b"a:LAST BYTES"
            assert connection.recv(1) == b""


@pytest.mark.parametrize("count", [0, 2])
def test_a_client_is_disconnected_if_no_target_answers(relay: RunningRelay, count: int) -> None:
    with upper("a", "b") as servers:
        relay.point_at(*servers[:count])
        for server in servers:
            server.close()
        with relay.connect() as connection:
            assert connection.recv(1) == b""
        for server in servers:
            server.listener = socket.create_server((HOST, 0))


def test_clients_wait_for_a_target_that_is_starting(relay: RunningRelay) -> None:
    relay.point_at()
    with relay.connect() as first, relay.connect() as second, upper("a") as servers:
        first.sendall(b"early ")
        relay.point_at(*servers)
        first.sendall(b"bytes")
        assert receive(first, 13) == b"a:EARLY BYTES"
        assert receive(second, 2) == b"a:"


def test_clients_wait_for_a_restarted_target(relay: RunningRelay) -> None:
    with closing(socket.create_server((HOST, 0))) as probe:
        port = int(probe.getsockname()[1])
    relay.targets.write_text(f"{HOST}:{port}\n")
    relay.reload()
    with (
        relay.connect() as first,
        relay.connect() as second,
        # No message to the relay: it looks by itself.
        socket.create_server((HOST, port)) as listener,
    ):
        for _ in range(2):
            accepted, _ = listener.accept()
            accepted.sendall(b"here")
            accepted.close()
        assert receive(first, 4) == receive(second, 4) == b"here"


def test_the_control_socket_is_private(relay: RunningRelay) -> None:
    assert relay.control.stat().st_mode & 0o077 == 0


def test_an_address_in_use_fails_with_one_line(relay: RunningRelay, tmp_path: Path) -> None:
    second = subprocess.run(
        [
            *(sys.executable, "-I", "-S", relay_module.__file__),
            *("--listen", f"{HOST}:{relay.port}"),
            *("--targets", str(tmp_path / "t"), "--control", str(tmp_path / "c")),
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode == 1
    assert second.stderr == f"cannot listen on {HOST}:{relay.port}: Address already in use\n"


@pytest.mark.parametrize(
    ("text", "target"),
    [("127.0.0.1:6443", ("127.0.0.1", 6443)), ("[::1]:6443\n", ("::1", 6443))],
)
def test_targets_may_have_ipv4_or_ipv6_addresses(text: str, target: tuple[str, int]) -> None:
    assert parse_target(text) == target


def test_a_missing_file_means_no_targets(tmp_path: Path) -> None:
    assert read_targets(tmp_path / "none") == []


def test_a_relay_without_descriptors_recovers(relay: RunningRelay) -> None:
    """It must not end or spin while a client holds more connections than it may open."""
    server = Upper("a")
    with closing(server):
        relay.point_at(server)
        held = len([*Path(f"/proc/{relay.process.pid}/fd").iterdir()])
        resource.prlimit(relay.process.pid, resource.RLIMIT_NOFILE, (held + 7, held + 7))
        clients = [relay.connect() for _ in range(8)]
        with clients[0] as first:
            first.sendall(b"hello")
            assert first.recv(100).startswith(b"a:")
        before = _cpu_ticks(relay.process.pid)
        with suppress(TimeoutError):
            clients[-1].settimeout(1)
            clients[-1].recv(1)
        assert relay.process.poll() is None
        assert _cpu_ticks(relay.process.pid) - before < 30, "the relay spins"
        for client in clients:
            client.close()
        with relay.connect() as after:
            assert after.recv(2) == b"a:"


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
