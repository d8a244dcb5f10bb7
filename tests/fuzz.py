"""schemathesis against a running extension: `python -m tests.fuzz`, of what its document says.

A handler's answer is always HTTP 200 with a status inside, whatever it is asked; a handler that is
not there is 404. So what has to hold is: no error of the server, no answer that its document does
not allow, each within a second, and a server that is as it was before.
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
"""Handlers that take their time by design."""
MOST_GROWTH = 24 * 2**20
"""The largest requests leave some room behind for the next ones."""


def main(arguments: list[str]) -> int:
    """Start an extension, and ask it whatever its document allows and forbids."""
    with tempfile.TemporaryDirectory(prefix="capelin-fuzz-") as name:
        folder = Path(name)
        write(folder / "tls", certificate())
        (folder / "ca.crt").write_bytes(CA.certificate_pem)
        with serving(folder / "tls") as served:
            show_documents(served)
            before = memory(served.process.pid)
            asked = subprocess.run(
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
        return asked.returncode if alive and grown <= MOST_GROWTH else 1


def show_documents(served: Served) -> None:
    """Have the server load what only its documents need, which stays."""
    connection = served.connect()
    for path in ("/docs", "/openapi.json"):
        connection.request("GET", path)
        connection.getresponse().read()
    connection.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
