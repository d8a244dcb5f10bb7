import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from capelin.runtime.v1alpha1 import (
    BeforeClusterCreate,
    BeforeClusterDelete,
    BeforeClusterUpgrade,
    Discovery,
    ValidateTopology,
)
from capelin.testing.waiting import wait_until
from cryptography import x509

from .server_process import CA, PATIENCE, PROGRAM, Served, ask, certificate, serial, serving, write

PID = BeforeClusterCreate.id.path("pid")
SLOW = BeforeClusterUpgrade.id.path("slow")
ENDLESS = BeforeClusterDelete.id.path("endless")
HUNG = ("hung", "hung-in-an-executor", "hung-in-a-thread-of-its-own")
SIZE = ValidateTopology.id.path("size")
CLUSTER = b'{"cluster":{}}'
UPGRADE = b'{"cluster":{},"fromKubernetesVersion":"v1","toKubernetesVersion":"v2"}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    write(folder, certificate())
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Generator[Served]:
    with serving(folder) as running:
        yield running


def test_a_hook_call_needs_no_content_type(server: Served) -> None:
    connection = server.connect()
    connection.request("POST", PID, CLUSTER)
    answer = connection.getresponse()
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.read())["message"] == str(server.process.pid)
    connection.close()


def test_one_connection_carries_many_calls(server: Served) -> None:
    connection = server.connect()
    names = {handler["name"] for handler in ask(connection, Discovery.id.path(), b"{}")["handlers"]}
    assert names == {"pid", "slow", "endless", "size", "motto", *HUNG}
    assert {ask(connection, PID, CLUSTER)["status"] for _ in range(20)} == {"Success"}
    connection.close()


def test_calls_do_not_wait_for_each_other(server: Served) -> None:
    slow = server.connect()
    slow.request("POST", SLOW, UPGRADE)
    assert server.ask(PID, CLUSTER)["status"] == "Success"
    assert json.loads(slow.getresponse().read())["message"] == "done"
    slow.close()


def test_probes_of_a_ready_server_succeed(server: Served) -> None:
    assert server.page("/healthz") == (200, "ok")
    assert server.page("/readyz") == (200, "ok")
    assert server.page("/nowhere")[0] == 404


def test_hooks_are_not_served_in_plain_http(server: Served) -> None:
    assert server.page(PID)[0] == 404


def test_calls_are_counted(server: Served) -> None:
    before = server.calls("pid", "success"), server.calls("pid", "failure")
    server.ask(PID, CLUSTER)
    server.ask(PID, b"nonsense")
    after = server.calls("pid", "success"), server.calls("pid", "failure")
    assert after == (before[0] + 1, before[1] + 1)


def test_a_call_ends_when_its_client_disconnects(server: Served) -> None:
    before = server.calls("endless", "abandoned")
    connection = server.connect()
    connection.request("POST", ENDLESS, CLUSTER)
    connection.close()
    wait_until(lambda: server.calls("endless", "abandoned") == before + 1)


def test_a_renewed_certificate_does_not_close_connections(tmp_path: Path) -> None:
    first = write(tmp_path, certificate())
    with serving(tmp_path) as server:
        old = server.connect()
        ask(old, PID, CLUSTER)
        second = write(tmp_path, certificate())
        numbers = [
            x509.load_pem_x509_certificate(pair.certificate_pem).serial_number
            for pair in (first, second)
        ]

        def shown() -> int:
            connection = server.connect()
            ask(connection, PID, CLUSTER)
            try:
                return serial(connection)
            finally:
                connection.close()

        wait_until(lambda: shown() == numbers[1])
        assert serial(old) == numbers[0]
        assert ask(old, PID, CLUSTER)["status"] == "Success"
        old.close()


def test_the_server_can_require_a_client_certificate(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "clients.crt").write_bytes(CA.certificate_pem)
    with serving(folder, f"--client-ca={tmp_path / 'clients.crt'}") as server:
        known = server.connect(shown=folder)
        assert ask(known, PID, CLUSTER)["status"] == "Success"
        known.close()
        assert not accepts_anonymous_clients(server.port)


def accepts_anonymous_clients(port: int) -> bool:
    """Whether a client without a certificate gets a response."""
    context = ssl.create_default_context(cadata=CA.certificate_pem.decode())
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
                # With TLS 1.3, a rejection arrives after the client has completed its handshake.
                connection.sendall(b"GET /docs HTTP/1.1\r\nHost: x\r\n\r\n")
                return connection.recv(1) != b""
        except (ssl.SSLError, ConnectionError):
            return False


def test_clients_need_no_certificate_by_default(server: Served) -> None:
    assert accepts_anonymous_clients(server.port)


def test_a_running_call_finishes_after_sigterm(folder: Path) -> None:
    with serving(folder) as server:
        connection = server.connect()
        connection.request("POST", SLOW, UPGRADE)
        wait_until(lambda: "begun\n" in server.out)
        server.process.send_signal(signal.SIGTERM)
        answer = connection.getresponse()
        assert json.loads(answer.read())["message"] == "done"
        connection.close()
        assert server.process.wait(PATIENCE) == 0
    assert sorted(server.out) == ["begun\n", "closed\n", "open\n"]


def test_a_server_with_hanging_threads_ends_after_sigterm(folder: Path) -> None:
    with serving(folder) as server:
        for handler in HUNG:
            server.ask(f"{BeforeClusterDelete.id.path(handler)}?timeout=50ms", CLUSTER)
        server.process.send_signal(signal.SIGTERM)
        try:
            assert server.process.wait(PATIENCE) == 0
        finally:
            server.process.kill()


def test_a_draining_server_still_answers_calls(folder: Path) -> None:
    with serving(folder, CAPELIN_DRAIN_SECONDS="60") as server:
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.page("/readyz")[0] == 503)
        connection = server.connect()
        connection.request("POST", PID, CLUSTER)
        answer = connection.getresponse()
        assert json.loads(answer.read())["status"] == "Success"
        assert answer.headers["connection"] == "close"
        connection.close()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_server_survives_the_end_of_its_parent_process(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        # The shell ends as soon as it has printed the pid.
        started = subprocess.run(
            [
                "sh",
                "-c",
                '"$0" "$1" --host=127.0.0.1 --port=0 --probes-port=0 > /dev/null & echo $!',
                sys.executable,
                str(PROGRAM),
            ],
            env={**os.environ, "CAPELIN_CERT_DIR": str(folder), "CAPELIN_DRAIN_SECONDS": "0"},
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            check=True,
        )
    pid = int(started.stdout.splitlines()[0])
    try:
        wait_until(lambda: f"serving {5 + len(HUNG)} handlers" in log.read_text())
        served = time.monotonic()
        wait_until(lambda: time.monotonic() > served + 1.5)
        assert not has_ended(pid)
    finally:
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: has_ended(pid))


def test_a_server_with_a_failing_lifespan_ends(folder: Path) -> None:
    done = run(folder, BROKEN="yes")
    assert done.returncode != 0
    assert "no API server" in done.stderr


def run(folder: Path, *flags: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(PROGRAM), "--host=127.0.0.1", "--port=0", "--probes-port=0", *flags],
        env={**os.environ, "CAPELIN_CERT_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_a_server_without_certificates_fails_with_the_missing_file(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1
    assert f"{tmp_path}/tls.crt is unreadable. Mount the certificate there" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_error_names_a_port_in_use(folder: Path, server: Served) -> None:
    done = run(folder, f"--port={server.port}")
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {server.port} (Address already in use)" in done.stderr
