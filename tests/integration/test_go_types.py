"""Capelin's messages compared with Cluster API's Go types: equal fields, paths and names."""

import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from capelin.api import Model
from capelin.runtime import AnyHook, openapi_document
from capelin.runtime.fixtures import request_for, sample_cluster
from capelin.runtime.messages import read
from capelin.runtime.v1alpha1 import CLUSTER_API
from capelin_embedded.binaries import CLUSTER_API as SOURCES
from capelin_embedded.binaries import Platform, find_go

# Without a build cache, Go compiles a large part of Kubernetes' libraries.
pytestmark = pytest.mark.timeout(1200)

PROGRAM = Path(__file__).with_name("go_types") / "main.go"

Messages = dict[str, dict[str, Any]]
"""Requests and responses by the name of their hook."""

Ask = Callable[[Messages], Awaitable[dict[str, Any]]]


@pytest.fixture(scope="module")
async def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Lets the Go types read messages, and returns their view of them and of themselves."""
    if shutil.which("go") is None:
        pytest.fail("there is no Go here")
    folder = tmp_path_factory.mktemp("go")
    files = SOURCES.module_files(SOURCES.versions[-1])
    for file in (files / "go.mod", files / "go.sum", PROGRAM):
        shutil.copy(file, folder)
    go = await find_go(
        files, what="a test", environment=os.environ, platform=Platform.current(), note=print
    )
    # The same flags as for the binaries, to share the build cache.
    await go.run("build", "-trimpath", "-buildvcs=false", "-o", "hooks", ".", folder=folder)

    async def asked(messages: Messages) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            str(folder / "hooks"), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate(json.dumps(messages).encode())
        assert process.returncode == 0
        return json.loads(out)

    return asked


def hooks_of(reply: dict[str, Any]) -> dict[str, Any]:
    return {hook["name"]: hook for hook in reply["hooks"]}


def sides(hook: AnyHook) -> dict[str, type[Model]]:
    return {"request": hook.request_type(), "response": hook.response_type()}


def missing(model: type[Model], document: dict[str, Any], path: str = "") -> list[str]:
    """Fields of Capelin's types that a document with all Go fields lacks."""
    found: list[str] = []
    for field in model.model_fields.values():
        name = str(field.validation_alias)
        value = document.get(name)
        if value is None:
            found.append(f"{path}{name}")
            continue
        first = cast("list[Any]", value)[0] if isinstance(value, list) else value
        for option in (field.annotation, *get_args(field.annotation)):
            if isinstance(option, type) and issubclass(option, Model):
                found += missing(option, first, f"{path}{name}.")
    return found


async def test_hooks_have_the_same_names_and_paths_in_go(ask: Ask) -> None:
    reply = hooks_of(await ask({}))
    assert reply.keys() == {hook.id.name for hook in CLUSTER_API}
    for hook in CLUSTER_API:
        go = reply[hook.id.name]
        path = hook.id.path(None if hook.singleton else "handler")
        assert (go["apiVersion"], go["path"]) == (hook.id.api_version, path)
        assert go["singleton"] == hook.singleton
        for side, model in sides(hook).items():
            assert go[side]["kind"] == model.__name__


async def test_go_messages_are_unchanged_by_capelins_types(
    ask: Ask,
) -> None:
    reply = hooks_of(await ask({}))
    for hook in CLUSTER_API:
        for side, model in sides(hook).items():
            full = reply[hook.id.name][side]["full"]
            # Strict: an unknown field would raise.
            assert model.model_validate(full).dump() == full
            assert missing(model, full) == []


async def test_every_field_of_capelins_messages_exists_in_go(ask: Ask) -> None:
    samples, scene = hooks_of(await ask({})), sample_cluster()
    ours: Messages = {}
    for hook in CLUSTER_API:
        full = samples[hook.id.name]["response"]["full"]
        response = read(hook.response_type(), full).dump()
        ours[hook.id.name] = {"request": request_for(hook, scene), "response": response}
    reply = hooks_of(await ask(ours))
    for hook in CLUSTER_API:
        go = reply[hook.id.name]
        assert (hook.id.name, go["request"]["wrong"], go["response"]["wrong"]) == (
            hook.id.name,
            "",
            "",
        )
        assert go["response"]["read"] == ours[hook.id.name]["response"]


def shape(schema: dict[str, Any]) -> str:
    """The type of a schema in the notation of the Go program."""
    if "allOf" in schema:
        (schema,) = schema["allOf"]
    if "$ref" in schema:
        return schema["$ref"].removeprefix("#/components/schemas/")
    if schema["type"] == "array":
        return f"list of {shape(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map of {shape(schema['additionalProperties'])}"
    return " ".join(filter(None, (schema["type"], schema.get("format"))))


async def test_the_openapi_document_has_the_fields_of_every_go_type(ask: Ask) -> None:
    types = (await ask({}))["types"]
    document = openapi_document(CLUSTER_API, title="ours", version="1")
    schemas = document["components"]["schemas"]
    assert schemas.keys() == types.keys()
    # Cluster API publishes an older schema, with a field that the Go type lacks.
    types["k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["clusterName"] = "string"
    for name, fields in types.items():
        described = schemas[name].get("properties", {})
        assert (name, {key: shape(field) for key, field in described.items()}) == (name, fields)
