from typing import Annotated

import orjson
import pytest
from capelin.runtime.messages import (
    Bytes,
    Int32,
    Int64,
    Message,
    MessageError,
    Part,
    read,
    read_json,
)
from capelin.runtime.v1alpha1 import (
    BeforeClusterCreateRequest,
    BeforeClusterCreateResponse,
    CanUpdateMachineResponse,
    DiscoveryResponse,
    GeneratePatchesRequest,
    GeneratePatchesResponse,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator

CLUSTER = {"metadata": {"name": "demo", "namespace": "default"}}
ITEM = {
    "uid": "1",
    "holderReference": {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "namespace": "default",
        "name": "demo",
        "fieldPath": "spec.controlPlaneRef",
    },
    "object": {"kind": "KubeadmControlPlaneTemplate", "spec": None},
}


def test_a_request_has_its_object_typed_and_as_json() -> None:
    request = read(
        BeforeClusterCreateRequest, {"cluster": {**CLUSTER, "spec": {"somethingNew": 1.0}}}
    )
    assert request.cluster.name == "demo"
    assert request.cluster_json["spec"] == {"somethingNew": 1.0}


def test_the_typed_object_is_created_once() -> None:
    request = read(BeforeClusterCreateRequest, {"cluster": CLUSTER})
    assert request.cluster is request.cluster


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_objects_inside_a_request_survive_a_round_trip(template: dict[str, object]) -> None:
    document = {"items": [{**ITEM, "object": template}]}
    request = read_json(GeneratePatchesRequest, orjson.dumps(document))
    assert orjson.dumps(request.dump()) == orjson.dumps(document)


def test_field_names_are_case_insensitive_like_in_go() -> None:
    response = read(BeforeClusterCreateResponse, {"Status": "Success", "RETRYAFTERSECONDS": 5})
    assert (response.status, response.retry_after_seconds) == ("Success", 5)


def test_field_names_in_lists_and_optional_parts_are_case_insensitive() -> None:
    request = read(
        GeneratePatchesRequest,
        {"Items": [{"UID": "1", **{key: ITEM[key] for key in ("holderReference", "object")}}]},
    )
    assert request.items[0].uid == "1"
    answer = read(
        CanUpdateMachineResponse,
        {"status": "Success", "MachinePatch": {"PatchType": "JSONPatch", "Patch": "W10="}},
    )
    assert answer.machine_patch is not None
    assert answer.machine_patch.patch == b"[]"


class Leaf(Part):
    deep_name: str = ""


class Tree(Message):
    by_name: dict[str, Annotated[Leaf, "a leaf"]] = {}
    one: Annotated[Leaf | None, "or none"] = None


def test_field_names_in_maps_and_annotated_types_are_case_insensitive() -> None:
    tree = read(Tree, {"ByName": {"x": {"DEEPNAME": "a"}}, "one": {"deepname": "b"}})
    assert (tree.by_name["x"].deep_name, tree.one) == ("a", Leaf(deep_name="b"))


def test_the_error_names_the_path_of_a_wrong_value() -> None:
    document: dict[str, object] = {"byName": [{}], "one": "x", "other": 1}
    with pytest.raises(MessageError) as error:
        read(Tree, document)
    assert str(error.value) == (
        "byName: Input should be a valid dictionary; "
        "one: Input should be a valid dictionary or instance of Leaf"
    )


def test_the_last_of_two_names_that_differ_in_case_wins() -> None:
    response = read(
        DiscoveryResponse, {"status": "Success", "message": "first", "Message": "second"}
    )
    assert response.message == "second"


def test_unknown_fields_are_ignored_at_every_depth() -> None:
    request = read(
        GeneratePatchesRequest, {"items": [{**ITEM, "addedLater": 1}], "addedLater": {"a": 1}}
    )
    assert request.dump() == {"items": [ITEM]}


def test_null_reads_as_empty() -> None:
    request = read(GeneratePatchesRequest, {"items": None, "settings": None, "variables": None})
    assert (request.items, request.settings, request.variables) == ([], {}, [])


def test_a_missing_number_is_0() -> None:
    response = read(BeforeClusterCreateResponse, {"status": "Success"})
    assert response.retry_after_seconds == 0


def test_a_value_of_another_type_fails() -> None:
    with pytest.raises(MessageError, match=r"^retryAfterSeconds: Input should be a valid integer$"):
        read(BeforeClusterCreateResponse, {"status": "Success", "retryAfterSeconds": "5"})


class Numbers(Message):
    small: Int32 = 0
    large: Int64 = 0


@pytest.mark.parametrize(("name", "bits"), [("small", 32), ("large", 64)])
def test_numbers_have_the_range_of_go(name: str, bits: int) -> None:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    for number in (low, high):
        assert read(Numbers, {name: number}).dump() == {name: number}
    for number in (low - 1, high + 1):
        with pytest.raises(MessageError, match=f"^{name}: Input should be"):
            read(Numbers, {name: number})


def test_the_error_names_a_missing_required_field() -> None:
    with pytest.raises(MessageError, match=r"^cluster: Field required$"):
        read_json(BeforeClusterCreateRequest, b"{}")


def test_bytes_are_base64_on_the_wire() -> None:
    patch = b'[{"op":"remove","path":"/x"}]' * 9
    answer = GeneratePatchesResponse.model_validate(
        {"status": "Success", "items": [{"uid": "1", "patchType": "JSONPatch", "patch": patch}]}
    )
    wire = answer.dump()
    assert "\n" not in wire["items"][0]["patch"]
    assert read(GeneratePatchesResponse, wire).items[0].patch == patch


@pytest.mark.parametrize("patch", ["s3cret!", "s3cr!et==", "s3cret"])
def test_invalid_base64_fails_without_being_quoted(patch: str) -> None:
    item = {"uid": "1", "patchType": "JSONPatch", "patch": patch}
    with pytest.raises(MessageError, match=r"items\.0\.patch: .*base64") as error:
        read(GeneratePatchesResponse, {"status": "Success", "items": [item]})
    assert "s3cr" not in str(error.value)


@pytest.mark.parametrize("body", [b"", b"{", b"[1] x", b"\xff", b"[" * 2000])
def test_read_json_rejects_invalid_json(body: bytes) -> None:
    with pytest.raises(MessageError, match="not JSON"):
        read_json(BeforeClusterCreateRequest, body)


@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b"null", b"true"])
def test_read_json_rejects_other_json_than_objects(body: bytes) -> None:
    with pytest.raises(MessageError, match="Input should be"):
        read_json(BeforeClusterCreateRequest, body)


def test_an_error_does_not_contain_the_value() -> None:
    with pytest.raises(MessageError) as error:
        read(BeforeClusterCreateRequest, {"cluster": CLUSTER, "settings": {"token": ["s3cret"]}})
    assert str(error.value) == "settings.token: Input should be a valid string"


def fails(value: str) -> str:
    raise ValueError(f"{value} is not a password")


def asserts(value: str) -> str:
    assert not value, value
    return value


class Guarded(Part):
    by_error: Annotated[str, AfterValidator(fails)] = ""
    by_assertion: Annotated[str, AfterValidator(asserts)] = ""
    patch: Bytes = b""


def test_an_error_does_not_contain_the_message_of_a_validator() -> None:
    document = {"byError": "s3cret", "byAssertion": "s3cret", "patch": "["}
    with pytest.raises(MessageError) as error:
        read(Guarded, document)
    assert str(error.value) == (
        "byError: Value error; byAssertion: Assertion failed; patch: Input should be base64"
    )
