"""Fuzzes a running extension with schemathesis and its OpenAPI document: `python -m tests.fuzz`.

A handler always answers HTTP 200 with a status in the body, and an unknown handler 404. So the
server must not fail, each answer must match the document and take less than a second, and the
server must keep running with about the same memory.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from core.tests.runtime.server_process import CA, Served, certificate, serving, write
from tests.support.kernel import memory

SCHEMATHESIS = "schemathesis==4.32.5"
CHECKS = (
    "not_a_server_error",
    "content_type_conformance",
    "response_schema_conformance",
)
WAITS = "/beforecluster(delete|upgrade)/"
"""Handlers that are slow by design."""
MOST_GROWTH = 24 * 2**20
"""The server keeps some memory of the largest requests for the next ones."""


def main(arguments: list[str]) -> int:
    """Start an extension and send valid and invalid requests."""
    with tempfile.TemporaryDirectory(prefix="capelin-fuzz-") as name:
        folder = Path(name)
        write(folder / "tls", certificate())
        (folder / "ca.crt").write_bytes(CA.certificate_pem)
        with serving(folder / "tls") as served:
            show_documents(served)
            before = memory(served.process.pid)
            result = subprocess.run(
                [
                    *("uvx", SCHEMATHESIS, "run"),
                    f"https://127.0.0.1:{served.port}/openapi.json",
                    f"--tls-verify={folder / 'ca.crt'}",
                    f"--checks={','.join(CHECKS)}",
                    f"--exclude-path-regex={WAITS}",
                    "--max-response-time=1",
                    "--max-examples=50",
                    "--generation-deterministic",
                    *arguments,
                ],
                cwd=folder,
                check=False,
            )
            alive = served.process.poll() is None
            grown = memory(served.process.pid) - before if alive else 0
        if not alive:
            print("".join(served.log), file=sys.stderr)  # noqa: T201
        if grown > MOST_GROWTH:
            print(f"the server has grown by {grown} bytes", file=sys.stderr)  # noqa: T201
        return result.returncode if alive and grown <= MOST_GROWTH else 1


def show_documents(served: Served) -> None:
    """Load the code for documents first, since it stays in memory."""
    connection = served.connect()
    for path in ("/docs", "/openapi.json"):
        connection.request("GET", path)
        connection.getresponse().read()
    connection.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
