import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from annotated_types import Gt, Lt, MaxLen
from capelin.api import rule
from capelin.runtime import Catalog, Deprecation, Hook
from capelin.runtime.messages import Int64, Json, Part, Request, Response
from capelin.runtime.openapi import openapi_document
from capelin.runtime.v1alpha1 import CLUSTER_API, Discovery

GOLDEN = Path(__file__).with_name("openapi.golden.json")
HOOKS = "sigs.k8s.io.cluster-api.api.runtime.hooks.v1alpha1"
DOCUMENT = openapi_document(CLUSTER_API, title="Cluster API - Runtime SDK", version="golden")


def text(document: dict[str, Any]) -> str:
    """Paths and our own types, one per line for readable differences."""
    types = document["components"]["schemas"].items()
    ours = {name: schema for name, schema in types if name.startswith(HOOKS)}
    parts = document["paths"] | ours
    lines = [f'"{name}": {json.dumps(parts[name], sort_keys=True)}' for name in parts]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def test_the_document_equals_the_released_one() -> None:
    """To accept a change, write the result of `text(DOCUMENT)` to the golden file."""
    assert text(DOCUMENT) == GOLDEN.read_text()


def references(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        for key, value in cast("dict[str, object]", part).items():
            if key == "$ref":
                yield str(value)
            else:
                yield from references(value)
    elif isinstance(part, list):
        for item in cast("list[object]", part):
            yield from references(item)


def test_every_reference_resolves_and_every_type_is_used() -> None:
    named = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert set(references(DOCUMENT)) == named


def test_hooks_have_the_paths_of_cluster_api() -> None:
    base = "/hooks.runtime.cluster.x-k8s.io/v1alpha1"
    assert len(DOCUMENT["paths"]) == 17
    assert f"{base}/discovery" in DOCUMENT["paths"]
    operation = DOCUMENT["paths"][f"{base}/beforeclusterupgrade/{{name}}"]["post"]
    assert operation["operationId"] == "hooksRuntimeClusterV1alpha1BeforeClusterUpgrade"
    assert [parameter["name"] for parameter in operation["parameters"]] == ["name"]


def schema(name: str) -> dict[str, Any]:
    return DOCUMENT["components"]["schemas"][f"{HOOKS}.{name}"]


def test_types_match_those_of_go() -> None:
    response = schema("BeforeClusterUpgradeResponse")
    assert response["required"] == ["status", "retryAfterSeconds"]
    assert response["properties"]["status"]["enum"] == ["Failure", "Success"]
    assert response["properties"]["retryAfterSeconds"]["format"] == "int32"
    patch = schema("GeneratePatchesResponseItem")["properties"]["patch"]
    assert patch == {"type": "string", "format": "byte"}


def test_objects_refer_to_cluster_apis_own_types() -> None:
    cluster = schema("BeforeClusterUpgradeRequest")["properties"]["cluster"]
    name = "sigs.k8s.io.cluster-api.api.core.v1beta2.Cluster"
    assert cluster["allOf"] == [{"$ref": f"#/components/schemas/{name}"}]
    assert DOCUMENT["components"]["schemas"][name]["required"] == ["spec"]


def test_a_document_has_only_what_its_hooks_need() -> None:
    document = openapi_document([Discovery], title="mine", version="2")
    assert {name.rpartition(".")[2] for name in document["components"]["schemas"]} == {
        "DiscoveryRequest",
        "DiscoveryResponse",
        "ExtensionHandler",
        "GroupVersionHook",
    }
    assert document["openapi"] == "3.0.0"
    assert document["info"]["title"] == "mine"


class Node(Part):
    """Refers to itself."""

    children: list["Node"] = []


class TryRequest(Request):
    name: Annotated[str, MaxLen(5)]
    """Name of the attempt."""
    count: Int64 | None = None
    even: Annotated[int, rule("self % 2 == 0", "must be even")] = 0
    limit: int | str = 0
    mode: Literal["quick"] = "quick"
    pace: Literal["slow", "fast", None] = None  # noqa: PYI061 - authors may write it
    share: Annotated[float, Gt(0), Lt(1)] = 0.5
    note: Annotated[str | None, MaxLen(9)] = None
    parts: Annotated[list["Node"] | None, MaxLen(3)] = None
    labels: dict[str, Node] = {}
    anything: Json = None


class TryResponse(Response):
    """A response."""


def test_hooks_of_other_groups_are_described() -> None:
    catalog = Catalog()

    @catalog.hook(
        "hooks.example.com/v1beta1",
        summary="Tries",
        tag="Trials",
        deprecated=Deprecation("1.2", date(2026, 1, 2), replaced_by="v1"),
    )
    class Try(Hook[TryRequest, TryResponse]):
        """A hook of another group."""

    document = openapi_document(catalog, title="mine", version="1")
    operation = document["paths"]["/hooks.example.com/v1beta1/try/{name}"]["post"]
    assert operation["operationId"] == "hooksExampleComV1beta1Try"
    assert operation["deprecated"]
    assert operation["x-deprecation"] == {
        "release": "1.2",
        "on": "2026-01-02",
        "replacedBy": "v1",
    }
    types = document["components"]["schemas"]
    fields = types[f"{TryRequest.__module__}.TryRequest"]["properties"]
    node = {"$ref": f"#/components/schemas/{Node.__module__}.Node"}
    assert fields["name"] == {
        "type": "string",
        "maxLength": 5,
        "description": "Name of the attempt.",
    }
    assert fields["count"] == {"type": "integer", "format": "int64"}
    assert fields["even"] == {
        "type": "integer",
        "x-kubernetes-validations": [{"rule": "self % 2 == 0", "message": "must be even"}],
    }
    assert fields["limit"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert fields["mode"] == {"type": "string", "enum": ["quick"]}
    assert fields["pace"] == {"enum": ["fast", "slow"]}
    assert fields["share"] == {
        "type": "number",
        "minimum": 0,
        "exclusiveMinimum": True,
        "maximum": 1,
        "exclusiveMaximum": True,
    }
    assert fields["note"] == {"type": "string", "maxLength": 9}
    assert fields["parts"] == {"type": "array", "items": node, "maxItems": 3}
    assert fields["labels"] == {"type": "object", "additionalProperties": node}
    assert types[f"{Node.__module__}.Node"]["properties"]["children"]["items"] == node
