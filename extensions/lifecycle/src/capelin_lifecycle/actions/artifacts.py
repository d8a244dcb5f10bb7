"""Artifacts of registries and rendered charts, which steps of policies use again.

An artifact never changes, and a chart renders the same for the same values. So the extension keeps
both for a policy, and the first step is the only one that needs the registry.
"""

import asyncio
import hashlib
import os
import re
import signal
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Generic, TypeVar, cast
from weakref import WeakValueDictionary

import orjson
from capelin.client import AllowedEndpoint
from capelin.controller import redact
from capelin.programs import default_signals

from capelin_lifecycle.actions.registry import (
    MAX_BYTES,
    Access,
    ArtifactError,
    Layer,
    Reference,
    pull,
)
from capelin_lifecycle.api.actions import Chart
from capelin_lifecycle.sandbox import limited
from capelin_lifecycle.sandbox.pool import MIB, Owner

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
_KEPT_BYTES: Final = 32 * MIB
_FAILURE_SECONDS: Final = 300.0
"""A chart that takes too much would take the turns of others with every step."""

ValueT = TypeVar("ValueT")


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


class Artifacts:
    """The registries and the program that the administrator allows, and what they returned."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.configure((), None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rendering = asyncio.Lock()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def configure(self, registries: Sequence[AllowedEndpoint], helm: Path | None) -> None:
        """Set the options of the administrator, and forget what others returned."""
        self._registries, self._helm = registries, helm
        self._layers = _Kept[list[Layer]](_KEPT_BYTES)
        self._rendered = _Kept[list[str]](_KEPT_BYTES)
        self._failures: OrderedDict[Hashable, tuple[float, str]] = OrderedDict()

    def check_helm(self) -> Path:
        """The program that renders charts.

        Raises:
            ArtifactError: the administrator has set none.
        """
        if self._helm is None:
            raise ArtifactError("charts need the option --helm of the extension")
        return self._helm

    async def layers(self, owner: Owner, reference: str, access: Access) -> list[Layer]:
        """The layers of an artifact.

        Raises:
            ArtifactError: it cannot be pulled.
        """
        key = (owner, reference, access)
        layers = self._layers.get(key)
        if layers is None:
            layers = await pull(Reference.parse(reference), access, self._registries)
            self._layers.put(key, layers, sum(len(layer.content) for layer in layers))
        return layers

    async def documents(
        self, owner: Owner, archive: bytes, chart: Chart, version: str
    ) -> list[str]:
        """The documents that a chart renders.

        Raises:
            ArtifactError: it cannot be rendered.
        """
        helm = self.check_helm()
        content = hashlib.sha256(archive).digest()
        settings = orjson.dumps(chart.dump(), option=orjson.OPT_SORT_KEYS)
        key = (owner, content, settings, version)
        self._attach()
        # One process at a time. Namespaces take turns.
        turn = self._turns.setdefault(owner.namespace, asyncio.Lock())
        async with turn, self._rendering:
            documents = self._rendered.get(key)
            if documents is None:
                self._check_failure(key)
                try:
                    documents = await render(helm, archive, chart, version)
                except ArtifactError as error:
                    self._failures[key] = (self._clock() + _FAILURE_SECONDS, str(error))
                    raise
                self._rendered.put(key, documents, sum(map(len, documents)))
        return documents

    def _check_failure(self, key: Hashable) -> None:
        now = self._clock()
        while self._failures and next(iter(self._failures.values()))[0] <= now:
            self._failures.popitem(last=False)
        if key in self._failures:
            raise ArtifactError(self._failures[key][1])

    def _attach(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._rendering, self._turns = loop, asyncio.Lock(), WeakValueDictionary()


class _Kept(Generic[ValueT]):
    """The values that were used last, up to a size."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._values: OrderedDict[Hashable, tuple[ValueT, int]] = OrderedDict()

    def get(self, key: Hashable) -> ValueT | None:
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: Hashable, value: ValueT, size: int) -> None:
        _, replaced = self._values.pop(key, (None, 0))
        self._values[key] = (value, size)
        self._left += replaced - size
        while self._left < 0:
            _, (_, freed) = self._values.popitem(last=False)
            self._left += freed


ARTIFACTS: Final = Artifacts()
"""Of the process: all policies share it."""
