"""Renders Helm charts with the program of the administrator, in a process with limits."""

import asyncio
import os
import re
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

import orjson
from capelin.controller import redact
from capelin.programs import default_signals

from capelin_lifecycle.actions.registry import MAX_BYTES, ArtifactError
from capelin_lifecycle.api.actions import Chart
from capelin_lifecycle.sandbox import limited
from capelin_lifecycle.sandbox.pool import MIB

MAX_RENDERED: Final = 4 * MIB
_CPU_SECONDS: Final = 10
_WALL_SECONDS: Final = 25.0
_MEMORY: Final = 192 * MIB
"""Less than the container has besides the extension: the kernel may end all of its processes."""
_GO_MEMORY: Final = "128MiB"
_MAX_ERROR: Final = 4096
_SHOWN: Final = 300
_DOCUMENT: Final = re.compile(r"^---(?=\s|$).*$", re.MULTILINE)
_GZIP: Final = b"\x1f\x8b"


async def render(program: Path, archive: bytes, chart: Chart, version: str) -> list[str]:
    """The documents that a chart renders for a version of Kubernetes, each as YAML.

    Raises:
        ArtifactError: the archive is not a chart, or rendering it fails or takes too much.
    """
    if not archive.startswith(_GZIP) or len(archive) > MAX_BYTES:
        raise ArtifactError(f"it is not a chart's archive of at most {MAX_BYTES // MIB} MiB")
    folder = tempfile.TemporaryDirectory(prefix="chart-", ignore_cleanup_errors=True)
    with folder as path:
        file = Path(path) / "chart.tgz"
        file.write_bytes(archive)
        output = await _run(
            [str(program), *arguments(file, chart, version)],
            {"HOME": path, "KUBECONFIG": os.devnull, "GOMEMLIMIT": _GO_MEMORY, "GOMAXPROCS": "1"},
            orjson.dumps(chart.values),
        )
    # Helm writes UTF-8, unless a file of the chart is something else.
    text = output.decode(errors="replace")
    return [part for part in _DOCUMENT.split(text) if part.strip()]


def arguments(file: Path, chart: Chart, version: str) -> list[str]:
    """The arguments with which Helm reads nothing but the archive and the values."""
    return [
        "template",
        chart.release,
        str(file),
        f"--namespace={chart.namespace}",
        "--values=-",
        "--include-crds",
        "--no-hooks",
        # A schema can refer to files and URLs, which Helm would read.
        "--skip-schema-validation",
        *([f"--kube-version={version}"] if version else []),
    ]


async def _run(command: Sequence[str], environment: dict[str, str], content: bytes) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", limited.__file__, str(_CPU_SECONDS), str(_MEMORY)),
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        cwd="/",
        start_new_session=True,
        preexec_fn=default_signals(),
    )
    stdin, stdout, stderr = (
        cast("asyncio.StreamWriter", process.stdin),
        cast("asyncio.StreamReader", process.stdout),
        cast("asyncio.StreamReader", process.stderr),
    )
    try:
        async with asyncio.timeout(_WALL_SECONDS):
            stdin.write(content)
            stdin.close()
            output, error = await asyncio.gather(
                _read(stdout, MAX_RENDERED), _read(stderr, _MAX_ERROR)
            )
            code = await process.wait()
    except TimeoutError:
        raise ArtifactError(f"Helm does not end within {_WALL_SECONDS:.0f} s") from None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if code in {-signal.SIGXCPU, -signal.SIGKILL}:
        raise ArtifactError(f"the chart takes more than {_CPU_SECONDS} s of CPU time, or memory")
    if code:
        lines = error.decode(errors="replace").split("\n")
        shown = next((line for line in lines if line.startswith("Error: ")), lines[0])
        raise ArtifactError(f"Helm cannot render the chart: {redact(shown[:_SHOWN])}")
    if len(output) > MAX_RENDERED:
        raise ArtifactError(f"the chart renders more than {MAX_RENDERED // MIB} MiB")
    return output


async def _read(stream: asyncio.StreamReader, limit: int) -> bytes:
    """The output of a process, up to a byte more than the limit. The rest is dropped."""
    content = bytearray()
    while chunk := await stream.read(2**16):
        content += chunk[: limit + 1 - len(content)]
    return bytes(content)
