import sys
from datetime import date
from pathlib import Path
from typing import Annotated, Any, cast

import pytest
from capelin.runtime.catalog import Catalog, Hook, HookId, load_catalog
from capelin.runtime.messages import Message, Request, Response, RetryResponse, read
from capelin.runtime.v1alpha1 import CLUSTER_API, BeforeClusterCreate, Discovery, UpdateMachine
from capelin.runtime.versions import CatalogError, Deprecation, Version
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

GROUP = "quota.example.com"


def test_cluster_api_has_seventeen_hooks() -> None:
    assert sorted(hook.id.name for hook in CLUSTER_API) == [
        "AfterClusterUpgrade",
        "AfterControlPlaneInitialized",
        "AfterControlPlaneUpgrade",
        "AfterWorkersUpgrade",
        "BeforeClusterCreate",
        "BeforeClusterDelete",
        "BeforeClusterUpgrade",
        "BeforeControlPlaneUpgrade",
        "BeforeWorkersUpgrade",
        "CanUpdateMachine",
        "CanUpdateMachineSet",
        "DiscoverVariables",
        "Discovery",
        "GeneratePatches",
        "GenerateUpgradePlan",
        "UpdateMachine",
        "ValidateTopology",
    ]


@pytest.mark.parametrize("hook", list(CLUSTER_API), ids=lambda hook: hook.id.name)
def test_messages_are_named_after_their_hook(hook: type[Hook[Any, Any]]) -> None:
    assert hook.request_type().__name__ == f"{hook.id.name}Request"
    assert hook.response_type().__name__ == f"{hook.id.name}Response"


def test_a_hook_knows_where_it_is_called() -> None:
    group_version = "/hooks.runtime.cluster.x-k8s.io/v1alpha1"
    assert Discovery.id.path() == f"{group_version}/discovery"
    assert BeforeClusterCreate.id.path("Quota") == f"{group_version}/beforeclustercreate/quota"


def test_which_hooks_block() -> None:
    free = {hook.id.name for hook in CLUSTER_API if not hook.blocks()}
    assert free == {
        "AfterControlPlaneInitialized",
        "CanUpdateMachine",
        "CanUpdateMachineSet",
        "DiscoverVariables",
        "Discovery",
        "GeneratePatches",
        "GenerateUpgradePlan",
        "ValidateTopology",
    }


def test_hooks_with_side_effects_are_those_along_the_life_of_a_cluster() -> None:
    assert not UpdateMachine.pure
    assert {hook.tag for hook in CLUSTER_API if not hook.pure} == {
        "Lifecycle Hooks",
        "In-Place Update Hooks",
    }


def test_versions_are_ordered_as_kubernetes_prefers_them() -> None:
    ordered = ["v1alpha1", "v1alpha2", "v2alpha1", "v1beta1", "v2beta1", "v1", "v2", "v10"]
    assert sorted(ordered, key=Version.parse) == ordered
    assert [Version.parse(v).track for v in ("v1alpha1", "v1beta2", "v3")] == [
        "alpha",
        "beta",
        "stable",
    ]


@pytest.mark.parametrize("text", ["", "1", "v0", "v1alpha", "v1alpha0", "v1gamma1", "v1beta1 "])
def test_what_is_not_a_version_is_refused(text: str) -> None:
    with pytest.raises(CatalogError, match="is not a version"):
        Version.parse(text)


# A hook that asks for a quota, in three versions.


class QuotaRequestV1(Request):
    cores: int


class QuotaResponseV1(Response):
    granted: bool = False


class QuotaRequestV2(Request):
    cores: int
    memory_gib: int = 0


class QuotaResponseV2(RetryResponse):
    granted_cores: int = 0


class QuotaRequestV3(Request):
    wanted: dict[str, int] = {}


class QuotaResponseV3(RetryResponse):
    granted: dict[str, int] = {}


def quota() -> tuple[Catalog, tuple[type[Hook[Any, Any]], ...]]:
    catalog = Catalog()

    def register(version: str, request: type[Message], response: type[Response]) -> Any:
        hook = type("Quota", (Hook,), {"__orig_bases__": (Hook[request, response],)})
        return catalog.hook(f"{GROUP}/{version}", summary="Asks for room", tag="Quota")(hook)

    hooks = (
        register("v1alpha1", QuotaRequestV1, QuotaResponseV1),
        register("v1alpha2", QuotaRequestV2, QuotaResponseV2),
        register("v1", QuotaRequestV3, QuotaResponseV3),
    )
    catalog.conversion(
        hooks[1],
        hooks[0],
        request=lambda new: QuotaRequestV1(settings=new.settings, cores=new.cores),
        response=lambda old: QuotaResponseV2(
            status=old.status,
            message=old.message,
            retry_after_seconds=0,
            granted_cores=1 if old.granted else 0,
        ),
    )
    catalog.conversion(
        hooks[2],
        hooks[1],
        request=lambda new: QuotaRequestV2(
            settings=new.settings,
            cores=new.wanted.get("cores", 0),
            memory_gib=new.wanted.get("memory", 0),
        ),
        response=lambda old: QuotaResponseV3(
            status=old.status,
            message=old.message,
            retry_after_seconds=old.retry_after_seconds,
            granted={"cores": old.granted_cores},
        ),
    )
    return catalog, hooks


CATALOG, (V1ALPHA1, V1ALPHA2, V1) = quota()


def test_versions_of_a_hook_stand_side_by_side_the_newest_first() -> None:
    assert CATALOG.versions(V1ALPHA2) == [V1, V1ALPHA2, V1ALPHA1]


def test_a_hook_is_found_by_version_and_name() -> None:
    assert CATALOG.find(f"{GROUP}/v1alpha2", "Quota") is V1ALPHA2


def test_an_unknown_hook_is_answered_with_those_that_are_known() -> None:
    with pytest.raises(CatalogError) as refusal:
        CATALOG.find(f"{GROUP}/v2", "Quota")
    assert str(refusal.value) == (
        f"no hook Quota {GROUP}/v2 in this catalog; "
        f"known: Quota {GROUP}/v1, Quota {GROUP}/v1alpha1, Quota {GROUP}/v1alpha2"
    )


def test_a_request_goes_down_over_several_versions() -> None:
    request = QuotaRequestV3(wanted={"cores": 4, "memory": 8}, settings={"a": "b"})
    assert CATALOG.older_request(request, V1, V1ALPHA1) == QuotaRequestV1(
        cores=4, settings={"a": "b"}
    )


def test_a_response_comes_up_over_several_versions() -> None:
    response = QuotaResponseV1(status="Success", message="fine", granted=True)
    assert CATALOG.newer_response(response, V1ALPHA1, V1) == QuotaResponseV3(
        status="Success", message="fine", retry_after_seconds=0, granted={"cores": 1}
    )


def test_the_same_version_needs_no_conversion() -> None:
    request = QuotaRequestV1(cores=1)
    assert CATALOG.older_request(request, V1ALPHA1, V1ALPHA1) is request


def test_there_is_no_way_up_for_requests() -> None:
    with pytest.raises(CatalogError, match="no conversion leads from"):
        CATALOG.older_request(QuotaRequestV1(cores=1), V1ALPHA1, V1)


def values(field: FieldInfo) -> st.SearchStrategy[Any]:
    declared: Any = field.annotation
    for limit in field.metadata:
        declared = Annotated[declared, limit]
    return st.from_type(cast("type[Any]", declared))


def messages(model: type[Message]) -> st.SearchStrategy[Any]:
    """Messages with any subset of the optional fields said."""
    fields = {
        name: field
        for name, field in model.model_fields.items()
        if name not in {"api_version", "kind"}
    }
    said = st.fixed_dictionaries(
        {name: values(field) for name, field in fields.items() if field.is_required()},
        optional={n: values(field) for n, field in fields.items() if not field.is_required()},
    )
    return said.map(model.model_validate)


PAIRS = [*CATALOG.conversions, *CLUSTER_API.conversions]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.newer.id} to {pair.older.id}")
@settings(deadline=None)
@given(data=st.data())
def test_every_newer_request_can_be_said_in_the_older_version(pair: Any, data: Any) -> None:
    request = data.draw(messages(pair.newer.request_type()))
    older = pair.request(request)
    assert read(pair.older.request_type(), older.dump()) == older
    assert older.settings == request.settings


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.older.id} to {pair.newer.id}")
@settings(deadline=None)
@given(data=st.data())
def test_every_older_response_can_be_said_in_the_newer_version(pair: Any, data: Any) -> None:
    response = data.draw(messages(pair.older.response_type()))
    newer = pair.response(response)
    assert read(pair.newer.response_type(), newer.dump()) == newer
    assert (newer.status, newer.message) == (response.status, response.message)
    if pair.older.blocks():
        assert newer.retry_after_seconds == response.retry_after_seconds


@pytest.mark.parametrize("catalog", [CATALOG, CLUSTER_API], ids=["example", "cluster-api"])
def test_every_older_version_can_be_reached_from_the_newest(catalog: Catalog) -> None:
    for hook in catalog:
        newest = catalog.versions(hook)[0]
        fields = newest.request_type().model_fields.values()
        if not any(field.is_required() for field in fields):
            catalog.older_request(newest.request_type()(), newest, hook)


def test_a_hook_is_registered_once() -> None:
    catalog, _ = quota()
    with pytest.raises(CatalogError, match=f"Quota {GROUP}/v1 is in the catalog already"):

        @catalog.hook(f"{GROUP}/v1", summary="again", tag="Quota")
        class Quota(Hook[QuotaRequestV1, QuotaResponseV1]):
            pass


@pytest.mark.parametrize(
    ("api_version", "problem"),
    [
        *((f"{group}v1", "is not a group and a version") for group in ("", "/", "a/b/", "A.b/")),
        ("example.com/1", "is not a version"),
    ],
)
def test_a_hook_needs_a_group_and_a_version(api_version: str, problem: str) -> None:
    with pytest.raises(CatalogError, match=problem):
        Catalog().hook(api_version, summary="", tag="")


def test_a_hook_says_its_messages() -> None:
    nothing: Any = type("Nothing", (Hook,), {})
    with pytest.raises(CatalogError, match="Nothing does not say its messages"):
        Catalog().hook("example.com/v1", summary="", tag="")(nothing)


def test_a_conversion_needs_two_versions_of_one_hook_in_order() -> None:
    catalog, (old, new, _) = quota()
    ways: Any = {"request": None, "response": None}
    with pytest.raises(CatalogError, match=r"has a conversion to .* already"):
        catalog.conversion(new, old, **ways)
    with pytest.raises(CatalogError, match=r"v1alpha1 is not newer than .*v1alpha2"):
        catalog.conversion(old, new, **ways)
    with pytest.raises(CatalogError, match="no hook BeforeClusterCreate"):
        catalog.conversion(new, BeforeClusterCreate, **ways)


def test_conversions_stay_within_one_hook() -> None:
    catalog, (old, *_) = quota()

    @catalog.hook(f"{GROUP}/v2", summary="", tag="")
    class Other(Hook[QuotaRequestV1, QuotaResponseV1]):
        pass

    with pytest.raises(CatalogError, match="are not versions of one hook"):
        catalog.conversion(Other, old, request=lambda new: new, response=lambda old: old)


def test_a_hook_carries_what_it_was_registered_with() -> None:
    going = Deprecation("1.16", date(2027, 4, 1), replaced_by="v1")

    @Catalog().hook("example.com/v1beta1", summary="Sum", tag="Tag", deprecated=going)
    class Going(Hook[QuotaRequestV1, QuotaResponseV1]):
        """What it is for."""

    assert Going.id == HookId("example.com", "v1beta1", "Going")
    assert (Going.summary, Going.tag, Going.deprecated) == ("Sum", "Tag", going)
    assert Going.description() == "What it is for."
    assert not Going.blocks()


def test_catalogs_are_joined_with_their_conversions() -> None:
    mine, versions = quota()
    both = CLUSTER_API.joined(mine, mine)
    assert both.find(versions[0].id.api_version, "Quota") is versions[0]
    assert both.find(BeforeClusterCreate.id.api_version, "BeforeClusterCreate")
    request = QuotaRequestV2(cores=3)
    assert both.older_request(request, versions[1], versions[0]) == QuotaRequestV1(cores=3)
    assert len(list(mine)) == 3
    other, _ = quota()
    with pytest.raises(CatalogError, match=r"two catalogs have a hook Quota .*, and not the same"):
        mine.joined(other)


def test_catalog_is_loaded_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    (tmp_path / "zoo_hooks.py").write_text("from capelin.runtime import Catalog\nZOO = Catalog()")
    (tmp_path / "broken_hooks.py").write_text("raise OSError('no sea')")
    assert isinstance(load_catalog("zoo_hooks:ZOO"), Catalog)
    for place, words in (
        ("zoo_hooks", "write it as module:name"),
        ("zoo_hooks:", "write it as module:name"),
        ("zoo_hooks:SEA", "has no catalog called SEA"),
        ("zoo_hooks:Catalog", "has no catalog called Catalog"),
        ("no_hooks:ZOO", "no_hooks cannot be imported"),
        ("broken_hooks:ZOO", r"\(OSError: no sea\)"),
    ):
        with pytest.raises(CatalogError, match=words):
            load_catalog(place)
