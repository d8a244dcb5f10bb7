"""A real API server with the CRDs of a test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from capelin.api import BaseObject, crd
from capelin.testing.waiting import wait_until

from .wire import Answer, Wire

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
Install = Callable[..., Answer]


@pytest.fixture(scope="session")
def wire(kubeconfig: Path) -> Iterator[Wire]:
    wire = Wire(kubeconfig)
    yield wire
    wire.close()


@pytest.fixture(scope="session")
def install(wire: Wire) -> Iterator[Install]:
    """Applies the CRD of a kind, waits until it is served, and deletes it at the end."""
    installed: list[str] = []

    def install(*versions: type[BaseObject]) -> Answer:
        definition = crd(*versions)
        path = f"{CRDS}/{definition['metadata']['name']}"
        answer = wire.apply(path, definition)
        assert answer.status in {200, 201}, answer.message
        installed.append(path)
        wait_until(lambda: wire.send("GET", versions[-1].resource.path()).status == 200)
        return answer

    yield install
    for path in installed:
        wire.send("DELETE", path)
