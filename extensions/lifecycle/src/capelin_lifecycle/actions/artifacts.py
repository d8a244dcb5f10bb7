"""Artifacts of registries and rendered charts, which steps of policies use again.

An artifact never changes, and a chart renders the same for the same values. So the extension keeps
both for a policy, and the first step is the only one that needs the registry.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

import orjson
from capelin.client import AllowedEndpoint

from capelin_lifecycle.actions.charts import render
from capelin_lifecycle.actions.registry import Access, ArtifactError, Layer, Reference, pull
from capelin_lifecycle.api.actions import Chart
from capelin_lifecycle.sandbox.pool import MIB, Owner

_KEPT_BYTES: Final = 32 * MIB
_FAILURE_SECONDS: Final = 300.0
"""A chart that takes too much would take the turns of others with every step."""

ValueT = TypeVar("ValueT")


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
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._rendering, self._turns = loop, asyncio.Lock(), WeakValueDictionary()
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
