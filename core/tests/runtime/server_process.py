"""Runs the extension of `sample_server.py` in its own process."""

import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from capelin.pki import KeyPair, issue, new_ca
from capelin.testing.waiting import wait_until
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families

NOW = datetime.now(UTC)
CA = new_ca("hooks", now=NOW)
PROGRAM = Path(__file__).with_name("sample_server.py")
PATIENCE = 30.0


def certificate() -> KeyPair:
    return issue(
        CA, common_name="guard", usages=["server", "client"], addresses=["127.0.0.1"], now=NOW
    )


def write(folder: Path, pair: KeyPair) -> KeyPair:
    folder.mkdir(exist_ok=True)
    (folder / "tls.crt").write_bytes(pair.certificate_pem)
    (folder / "tls.key").write_bytes(pair.private_key_pem)
    return pair


class Served:
    """A running server."""

    def __init__(self, process: "subprocess.Popen[str]", log: list[str], out: list[str]) -> None:
        self.process, self.log, self.out = process, log, out

        def ports() -> re.Match[str] | None:
            assert process.poll() is None, "".join(log)
            return re.search(r"https port (\d+)[^,]*, probes on http port (\d+)", "".join(log))

        match = wait_until(ports)
        self.port, self.probes = int(match[1]), int(match[2])
        wait_until(lambda: self.page("/readyz")[0] == 200)
        self.ready = time.monotonic()

    def connect(self, shown: Path | None = None) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cadata=CA.certificate_pem.decode())
        if shown is not None:
            context.load_cert_chain(shown / "tls.crt", shown / "tls.key")
        return http.client.HTTPSConnection(
            "127.0.0.1", self.port, context=context, timeout=PATIENCE
        )

    def page(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.probes, timeout=PATIENCE)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except ConnectionError:
            return 0, ""
        finally:
            connection.close()

    def calls(self, handler: str, outcome: str) -> float:
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.page("/metrics")[1])
            for sample in family.samples
            if sample.name == "capelin_runtime_requests_total"
            and (sample.labels["handler"], sample.labels["outcome"]) == (handler, outcome)
        )

    def ask(self, path: str, body: bytes) -> dict[str, Any]:
        connection = self.connect()
        try:
            return ask(connection, path, body)
        finally:
            connection.close()


def ask(connection: http.client.HTTPConnection, path: str, body: bytes) -> dict[str, Any]:
    connection.request("POST", path, body)
    answer = connection.getresponse()
    response = json.loads(answer.read())
    assert answer.status == 200
    return response


def serial(connection: http.client.HTTPSConnection) -> int:
    shown = connection.sock.getpeercert(binary_form=True)
    assert isinstance(shown, bytes)
    return x509.load_der_x509_certificate(shown).serial_number


def follow(stream: IO[str], lines: list[str]) -> threading.Thread:
    thread = threading.Thread(target=lambda: lines.extend(stream), daemon=True)
    thread.start()
    return thread


@contextmanager
def serving(
    folder: Path, *flags: str, program: Path = PROGRAM, **environment: str
) -> Generator[Served]:
    with subprocess.Popen(
        [sys.executable, str(program), "--host=127.0.0.1", *flags],
        env={
            **os.environ,
            "CAPELIN_CERT_DIR": str(folder),
            "CAPELIN_PORT": "0",
            "CAPELIN_PROBES_PORT": "0",
            "CAPELIN_DRAIN_SECONDS": "0",
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        assert process.stdout
        log, out = list[str](), list[str]()
        threads = follow(process.stderr, log), follow(process.stdout, out)
        try:
            yield Served(process, log, out)
        finally:
            process.terminate()
            process.wait(PATIENCE)
            for thread in threads:
                thread.join(PATIENCE)
