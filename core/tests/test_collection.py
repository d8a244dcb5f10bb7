"""The garbage collector while large JSON is read."""

import gc
import json
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from capelin.api.core import ConfigMap
from capelin.client.codecs import codec_of
from capelin.collection import large_objects
from capelin.runtime import Call, Extension
from capelin.runtime.dispatch import handler_runners
from capelin.runtime.v1alpha1 import ValidateTopology


@contextmanager
def counted_collections() -> Generator[list[str]]:
    collections: list[str] = []

    def count(phase: str, _: dict[str, int]) -> None:
        collections.append(phase)

    gc.callbacks.append(count)
    try:
        yield collections
    finally:
        gc.callbacks.remove(count)


def list_of_config_maps(count: int) -> bytes:
    items = [
        {"metadata": {"name": f"{n}", "uid": "u", "resourceVersion": "1"}, "data": {"a": "b"}}
        for n in range(count)
    ]
    return json.dumps({"metadata": {"resourceVersion": "7"}, "items": items}).encode()


def test_the_collector_rests_only_while_a_large_document_is_read() -> None:
    with large_objects(2**20):
        assert not gc.isenabled()
        with large_objects(2**20):
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with large_objects(100):
        assert gc.isenabled()
    with pytest.raises(ValueError, match="unreadable"), large_objects(2**20):
        raise ValueError("unreadable")
    assert gc.isenabled()


def test_a_large_list_is_read_without_collections() -> None:
    data = list_of_config_maps(2000)
    # Types are built at first use.
    codec_of(ConfigMap).decode_page(list_of_config_maps(1))
    with counted_collections() as collections:
        gc.disable()
        try:
            gc.collect(0)
            collections.clear()
        finally:
            gc.enable()
        page = codec_of(ConfigMap).decode_page(data)
        # One may follow, with the next object that the program creates.
        assert collections.count("start") <= 1
    assert len(page.items) == 2000


async def test_a_large_request_is_answered_without_collections() -> None:
    extension = Extension("large")

    @extension.handler(ValidateTopology)
    def validate(call: Call[ValidateTopology, None]) -> None:
        assert len(call.request.items) == 2000
        assert not gc.isenabled()

    item = {
        "holderReference": {
            "apiVersion": "v1",
            "kind": "Shoal",
            "namespace": "default",
            "name": "a",
            "fieldPath": "spec",
        },
        "object": {"apiVersion": "v1", "kind": "Shoal", "spec": {"size": [{"fish": 1}] * 5}},
    }
    request = {
        "apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1",
        "kind": "ValidateTopologyRequest",
        "items": [item] * 2000,
        "variables": [],
    }
    (runner,) = (
        runner
        for runner in handler_runners(extension).values()
        if runner.handler.name == "validate"
    )
    response = await runner.respond(json.dumps(request).encode())
    assert response.outcome == "success", response.body
    assert gc.isenabled()
