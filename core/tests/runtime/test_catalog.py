import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from capelin.runtime.catalog import Catalog, Hook, HookId, load_catalog
from capelin.runtime.messages import Message, Request, Response, RetryResponse
from capelin.runtime.v1alpha1 import CLUSTER_API, BeforeClusterCreate, Discovery, UpdateMachine
from capelin.runtime.versions import CatalogError, Deprecation, Version

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


def test_a_hook_has_the_path_of_cluster_api() -> None:
    group_version = "/hooks.runtime.cluster.x-k8s.io/v1alpha1"
    assert Discovery.id.path() == f"{group_version}/discovery"
    assert BeforeClusterCreate.id.path("Quota") == f"{group_version}/beforeclustercreate/quota"


def test_only_blocking_hooks_have_a_retry() -> None:
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


def test_only_lifecycle_and_in_place_update_hooks_have_side_effects() -> None:
    assert not UpdateMachine.pure
    assert {hook.tag for hook in CLUSTER_API if not hook.pure} == {
        "Lifecycle Hooks",
        "In-Place Update Hooks",
    }


def test_versions_have_the_order_of_kubernetes() -> None:
    ordered = ["v1alpha1", "v1alpha2", "v2alpha1", "v1beta1", "v2beta1", "v1", "v2", "v10"]
    assert sorted(ordered, key=Version.parse) == ordered
    assert [Version.parse(v).track for v in ("v1alpha1", "v1beta2", "v3")] == [
        "alpha",
        "beta",
        "stable",
    ]


@pytest.mark.parametrize("text", ["", "1", "v0", "v1alpha", "v1alpha0", "v1gamma1", "v1beta1 "])
def test_parse_rejects_invalid_versions(text: str) -> None:
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
    requested: dict[str, int] = {}


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
    return catalog, hooks


CATALOG, (_, V1ALPHA2, _) = quota()


def test_find_returns_a_hook_by_version_and_name() -> None:
    assert CATALOG.find(f"{GROUP}/v1alpha2", "Quota") is V1ALPHA2


def test_the_error_for_an_unknown_hook_lists_known_hooks() -> None:
    with pytest.raises(CatalogError) as error:
        CATALOG.find(f"{GROUP}/v2", "Quota")
    assert str(error.value) == (
        f"no hook Quota {GROUP}/v2 in this catalog "
        f"(known: Quota {GROUP}/v1, Quota {GROUP}/v1alpha1, Quota {GROUP}/v1alpha2)"
    )


def test_a_hook_can_be_registered_only_once() -> None:
    catalog, _ = quota()
    with pytest.raises(CatalogError, match=f"Quota {GROUP}/v1 is in the catalog already"):

        @catalog.hook(f"{GROUP}/v1", summary="again", tag="Quota")
        class Quota(Hook[QuotaRequestV1, QuotaResponseV1]):
            pass


@pytest.mark.parametrize(
    ("api_version", "problem"),
    [
        *((f"{group}v1", "is not GROUP/VERSION") for group in ("", "/", "a/b/", "A.b/")),
        ("example.com/1", "is not a version"),
    ],
)
def test_a_hook_needs_a_group_and_a_version(api_version: str, problem: str) -> None:
    with pytest.raises(CatalogError, match=problem):
        Catalog().hook(api_version, summary="", tag="")


def test_a_hook_must_declare_its_messages() -> None:
    nothing: Any = type("Nothing", (Hook,), {})
    with pytest.raises(CatalogError, match="Nothing does not declare its messages"):
        Catalog().hook("example.com/v1", summary="", tag="")(nothing)


def test_a_hook_stores_the_values_of_its_registration() -> None:
    deprecation = Deprecation("1.16", date(2027, 4, 1), replaced_by="v1")

    @Catalog().hook("example.com/v1beta1", summary="Sum", tag="Tag", deprecated=deprecation)
    class Deprecated(Hook[QuotaRequestV1, QuotaResponseV1]):
        """Purpose of the hook."""

    assert Deprecated.id == HookId("example.com", "v1beta1", "Deprecated")
    assert (Deprecated.summary, Deprecated.tag, Deprecated.deprecated) == (
        "Sum",
        "Tag",
        deprecation,
    )
    assert Deprecated.description() == "Purpose of the hook."
    assert not Deprecated.blocks()


def test_joined_combines_catalogs_and_rejects_conflicts() -> None:
    mine, versions = quota()
    both = CLUSTER_API.joined(mine, mine)
    assert both.find(versions[0].id.api_version, "Quota") is versions[0]
    assert both.find(BeforeClusterCreate.id.api_version, "BeforeClusterCreate")
    assert len(list(mine)) == 3
    other, _ = quota()
    with pytest.raises(CatalogError, match=r"two catalogs have a hook Quota .*, and not the same"):
        mine.joined(other)


def test_load_catalog_imports_a_catalog_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    (tmp_path / "zoo_hooks.py").write_text("from capelin.runtime import Catalog\nZOO = Catalog()")
    (tmp_path / "broken_hooks.py").write_text("raise OSError('no sea')")
    assert isinstance(load_catalog("zoo_hooks:ZOO"), Catalog)
    for reference, words in (
        ("zoo_hooks", "Write it as module:name"),
        ("zoo_hooks:", "Write it as module:name"),
        ("zoo_hooks:SEA", "has no catalog SEA"),
        ("zoo_hooks:Catalog", "has no catalog Catalog"),
        ("no_hooks:ZOO", "no_hooks cannot be imported"),
        ("broken_hooks:ZOO", r"\(OSError: no sea\)"),
    ):
        with pytest.raises(CatalogError, match=words):
            load_catalog(reference)
