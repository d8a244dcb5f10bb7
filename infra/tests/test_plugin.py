"""The provider's answers to the engine, without an engine."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from capelin.api import Model
from capelin.errors import NotReadyError
from capelin_cli.kind import KindMount, KindNode, KindPort
from capelin_embedded.addresses import free_port
from capelin_infra.plugin.clusters import FORGET, is_another_server
from capelin_infra.plugin.environment_handler import EnvironmentHandler
from capelin_infra.plugin.kind_cluster_handler import KindClusterHandler
from capelin_infra.plugin.provider import CapelinProvider
from capelin_infra.plugin.resource import Operation, PartlyCreatedError, ResourceHandler
from capelin_infra.plugin.schema import package_schema
from capelin_infra.plugin.server import InitFailedError
from capelin_infra.plugin.values import UNKNOWN, known_values, property_values
from capelin_infra.plugin.workload_cluster_handler import WorkloadClusterHandler
from capelin_infra.resource_types import (
    RESOURCE_TYPES,
    EnvironmentInputs,
    EnvironmentState,
    KindClusterInputs,
    KindClusterState,
    ResourceType,
    WorkloadClusterInputs,
    WorkloadClusterState,
    semantic_version,
)
from pulumi.provider.experimental import provider as rpc
from pulumi.provider.experimental.property_value import PropertyValue

from .python_classes import FILE, python_classes

URN = "urn:pulumi:dev::project::capelin:components:ManagementCluster$capelin:index:{}::one"


class ThingInputs(Model):
    size: int
    """How big."""
    home: str | None = None
    """Which cluster it is in."""


class ThingState(ThingInputs):
    path: str
    """Where it is."""


THING = ResourceType("Thing", ThingInputs, ThingState, clusters=frozenset({"home"}))


@dataclass
class ThingHandler(ResourceHandler[ThingInputs, ThingState]):
    """A resource in memory."""

    failure: str = ""

    kind = THING

    def check(self, inputs: ThingInputs) -> dict[str, str]:
        return {"size": "it is negative"} if inputs.size < 0 else {}

    async def create(self, inputs: ThingInputs, operation: Operation) -> tuple[str, ThingState]:
        operation.show("making it")
        state = ThingState(**inputs.model_dump(by_alias=False), path="/thing")
        if self.failure:
            raise PartlyCreatedError("thing", state, RuntimeError(self.failure))
        return "thing", state

    async def read(self, id_: str, state: ThingState | None) -> ThingState | None:
        del id_
        return state

    async def update(
        self, id_: str, old: ThingState, new: ThingInputs, operation: Operation
    ) -> ThingState:
        del id_, operation
        return old.model_copy(update=new.model_dump(by_alias=False))

    async def delete(self, id_: str, state: ThingState, operation: Operation) -> None:
        del id_, state, operation


def provider(handler: ThingHandler | None = None) -> CapelinProvider:
    return CapelinProvider("1.0", lambda _urn, _message: None, [handler or ThingHandler()])


def inputs_of(**values: Any) -> dict[str, PropertyValue]:
    return property_values(values, secrets=set(), unknown=set())


async def test_a_value_of_the_wrong_type_is_rejected_with_its_name() -> None:
    request = rpc.CheckRequest(URN.format("Thing"), {}, inputs_of(size="big", colour="red"), b"")
    response = await provider().check(request)
    assert {each.property for each in response.failures or []} == {"size", "colour"}


async def test_a_value_that_the_resource_rejects_is_a_failure() -> None:
    request = rpc.CheckRequest(URN.format("Thing"), {}, inputs_of(size=-1), b"")
    (failure,) = (await provider().check(request)).failures or []
    assert (failure.property, failure.reason) == ("size", "it is negative")


async def test_an_unknown_value_does_not_count_as_missing() -> None:
    request = rpc.CheckRequest(URN.format("Thing"), {}, inputs_of(size=UNKNOWN), b"")
    assert not (await provider().check(request)).failures


async def test_outputs_are_unknown_in_the_preview_of_a_new_resource() -> None:
    request = rpc.CreateRequest(URN.format("Thing"), inputs_of(size=1), 0, preview=True)
    response = await provider().create(request)
    assert response.resource_id is None
    assert known_values(response.properties) == ({"size": 1}, {"path"})


async def test_equal_inputs_cause_no_change() -> None:
    old = inputs_of(size=1, path="/thing")
    request = rpc.DiffRequest(URN.format("Thing"), "thing", old, inputs_of(size=1), [])
    assert not (await provider().diff(request)).changes


async def test_a_preview_replaces_a_resource_whose_cluster_is_replaced() -> None:
    """The engine therefore deletes it before its cluster."""
    old = inputs_of(size=1, home="old", path="/thing")
    news = inputs_of(size=1, home=UNKNOWN)
    request = rpc.DiffRequest(URN.format("Thing"), "thing", old, news, [])
    response = await provider().diff(request)
    assert (response.diffs, response.replaces) == (["home"], ["home"])


async def test_a_diff_names_the_changed_property() -> None:
    old = inputs_of(size=1, path="/thing")
    request = rpc.DiffRequest(URN.format("Thing"), "thing", old, inputs_of(size=2), [])
    response = await provider().diff(request)
    assert (response.changes, response.diffs, response.replaces) == (True, ["size"], [])


async def test_an_incomplete_resource_stays_in_the_state() -> None:
    request = rpc.CreateRequest(URN.format("Thing"), inputs_of(size=1), 0, preview=False)
    with pytest.raises(InitFailedError, match="no space left") as caught:
        await provider(ThingHandler("no space left")).create(request)
    assert caught.value.id == "thing"
    assert known_values(caught.value.properties)[0] == {"size": 1, "path": "/thing"}


async def test_a_deleted_resource_reads_as_missing() -> None:
    request = rpc.ReadRequest(URN.format("Thing"), "thing", {}, {})
    assert (await provider().read(request)).resource_id is None


async def test_an_input_that_the_program_marked_as_a_secret_is_one_in_every_answer() -> None:
    """Also where the schema does not mark it: a URL may have a password."""
    secret = {
        "size": PropertyValue(1.0),
        "home": PropertyValue("hunter2").with_secret(is_secret=True),
    }
    urn = URN.format("Thing")
    thing = provider()
    created = await thing.create(rpc.CreateRequest(urn, secret, 0, preview=False))
    answers = [
        (await thing.check(rpc.CheckRequest(urn, {}, secret, b""))).inputs,
        (await thing.create(rpc.CreateRequest(urn, secret, 0, preview=True))).properties,
        created.properties,
        (await thing.read(rpc.ReadRequest(urn, "thing", created.properties, secret))).properties,
        (
            await thing.update(
                rpc.UpdateRequest(urn, "thing", created.properties, secret, 0, [], preview=False)
            )
        ).properties,
    ]
    assert all(answer is not None and answer["home"].is_secret for answer in answers)
    with pytest.raises(InitFailedError) as caught:
        await provider(ThingHandler("full")).create(
            rpc.CreateRequest(urn, secret, 0, preview=False)
        )
    assert caught.value.properties["home"].is_secret


def test_secrets_are_marked_and_numbers_stay_integers() -> None:
    values = {"password": "x", "size": 3, "nested": [{"a": 1.5}]}
    wrapped = property_values(values, secrets={"password"}, unknown=set())
    assert wrapped["password"].is_secret
    assert not wrapped["size"].is_secret
    assert known_values(wrapped)[0] == values


def test_the_schema_marks_secrets_and_immutable_properties() -> None:
    schema = package_schema("1.0", RESOURCE_TYPES)
    kind = schema["resources"]["capelin:index:KindCluster"]
    assert kind["properties"]["kubeconfig"]["secret"] is True
    assert kind["inputProperties"]["nodes"]["willReplaceOnChanges"] is True
    assert "willReplaceOnChanges" not in kind["inputProperties"]["images"]
    assert kind["requiredInputs"] == ["name"]
    assert kind["inputProperties"]["nodes"]["items"] == {"$ref": "#/types/capelin:index:KindNode"}
    json.dumps(schema)


def test_the_python_classes_are_fresh() -> None:
    def bare(text: str) -> str:
        return "".join(text.split()).replace(",", "").replace("'", '"')

    assert bare(FILE.read_text()) == bare(python_classes()), (
        "update them: python -m infra.tests.python_classes && ruff format"
    )


KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "https://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{token: {token}}}}}]
"""


def environment(**changes: Any) -> EnvironmentState:
    values: dict[str, Any] = {
        "name": "dev",
        "uid": "e",
        "kubeconfig": "k",
        "context": "c",
        "version": "v1.34.4",
        "folder": "/f",
        "running": True,
        **changes,
    }
    return EnvironmentState(**values)


def test_a_stopped_environment_starts_again() -> None:
    new = EnvironmentInputs(name="dev")
    handler = EnvironmentHandler()
    assert handler.diff(environment(), new).changed == set()
    assert handler.diff(environment(running=False), new).changed == {"running"}


def test_another_existing_cluster_replaces_the_environment() -> None:
    first = KUBECONFIG.format(port=1, token="a")
    renewed, other = KUBECONFIG.format(port=1, token="b"), KUBECONFIG.format(port=2, token="a")
    assert not is_another_server(first, first)
    assert not is_another_server(first, renewed)
    assert is_another_server(first, other)
    assert is_another_server(None, first)
    difference = EnvironmentHandler().diff(
        environment(existing_kubeconfig=first),
        EnvironmentInputs(name="dev", existing_kubeconfig=other),
    )
    assert difference.replaced == {"existingKubeconfig"}


@pytest.mark.parametrize("version", [None, "v1.36.3"])
def test_an_environment_keeps_its_version_or_is_upgraded_in_place(version: str | None) -> None:
    new = EnvironmentInputs(name="dev", kubernetes_version=version)
    difference = EnvironmentHandler().diff(environment(kubernetes_version="v1.35.4"), new)
    assert difference.changed == ({"kubernetesVersion"} if version else set())
    assert difference.replaced == set()


def test_the_preview_rejects_invalid_environments() -> None:
    inputs = EnvironmentInputs(
        name="No Name",
        kubernetes_version="v1.1.1",
        providers=["moon"],
        existing_kubeconfig="nonsense",
    )
    failures = EnvironmentHandler().check(inputs)
    assert set(failures) == {"name", "kubernetesVersion", "providers", "existingKubeconfig"}


def workload(**changes: Any) -> WorkloadClusterState:
    values: dict[str, Any] = {
        "kubeconfig": "k",
        "name": "demo",
        "kubernetes_version": "v1.33.13",
        "uid": "u",
        "workload_kubeconfig": "w",
        "endpoint": "h:1",
        "available": True,
        **changes,
    }
    return WorkloadClusterState(**values)


def test_new_credentials_reach_the_state_of_a_workload_cluster() -> None:
    new = WorkloadClusterInputs(kubeconfig="new", name="demo", kubernetes_version="v1.33.13")
    difference = WorkloadClusterHandler().diff(workload(), new)
    assert (difference.changed, difference.replaced) == ({"kubeconfig"}, set())


@pytest.mark.parametrize(
    ("before", "after", "replaced"),
    [
        ("a", "a", set[str]()),
        ("a", "b", {"managementUID"}),
        # The program did not name it before, or no longer does.
        (None, "b", set[str]()),
        ("a", None, set[str]()),
    ],
)
def test_a_workload_cluster_is_replaced_with_its_management_cluster(
    before: str | None, after: str | None, replaced: set[str]
) -> None:
    new = WorkloadClusterInputs(
        kubeconfig="k", management_uid=after, name="demo", kubernetes_version="v1.33.13"
    )
    assert WorkloadClusterHandler().diff(workload(management_uid=before), new).replaced == replaced


def test_a_workload_cluster_is_upgraded_in_place_and_replaced_for_another_environment() -> None:
    new = WorkloadClusterInputs(
        kubeconfig="k", name="demo", namespace="other", kubernetes_version="v1.34.4"
    )
    difference = WorkloadClusterHandler().diff(workload(), new)
    assert difference.changed == {"namespace", "kubernetesVersion"}
    assert difference.replaced == {"namespace"}


@pytest.fixture
def silent() -> WorkloadClusterState:
    """A workload cluster whose management cluster does not answer."""
    return workload(kubeconfig=KUBECONFIG.format(port=free_port("127.0.0.1"), token="a"))


async def test_an_outage_of_the_management_cluster_is_an_error(
    silent: WorkloadClusterState,
) -> None:
    handler = WorkloadClusterHandler()
    operation = Operation(URN, 1, lambda _message: None)
    with pytest.raises(NotReadyError, match="does not answer") as caught:
        await handler.read("default/demo", silent)
    assert f"{FORGET}=true" in caught.value.hint
    with pytest.raises(NotReadyError, match="does not answer"):
        await handler.delete("default/demo", silent, operation)


async def test_users_can_declare_a_management_cluster_gone(
    silent: WorkloadClusterState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORGET, "true")
    handler = WorkloadClusterHandler()
    assert await handler.read("default/demo", silent) is None
    await handler.delete("default/demo", silent, Operation(URN, 1, lambda _message: None))


def kind(**changes: Any) -> KindClusterState:
    values: dict[str, Any] = {
        "name": "dev",
        "uid": "k",
        "kubeconfig": "k",
        "image_digests": {},
        "running": True,
        **changes,
    }
    return KindClusterState(**values)


@pytest.mark.parametrize(
    ("old", "new", "changed", "replaced"),
    [
        ({}, {}, set[str](), set[str]()),
        # The state of an imported cluster has its image and its node. The program names neither.
        ({"image": "kindest/node:v1", "nodes": [KindNode()]}, {}, set[str](), set[str]()),
        ({}, {"nodes": [KindNode(), KindNode(role="worker")]}, {"nodes"}, {"nodes"}),
        ({}, {"registry_mirrors": {"docker.io": "http://m"}}, {"registryMirrors"}, set[str]()),
        ({}, {"feature_gates": {"A": True}}, {"featureGates"}, {"featureGates"}),
        ({"running": False}, {}, {"running"}, set[str]()),
    ],
)
def test_a_kind_cluster_is_replaced_only_if_necessary(
    old: dict[str, Any], new: dict[str, Any], changed: set[str], replaced: set[str]
) -> None:
    difference = KindClusterHandler().diff(kind(**old), KindClusterInputs(name="dev", **new))
    assert (difference.changed, difference.replaced) == (changed, replaced)


def test_the_preview_rejects_invalid_kind_clusters() -> None:
    port = KindPort(container_port=80, host_port=8080)
    node = KindNode(
        role="worker",
        mounts=[KindMount(host_path="here", container_path="/there")],
        ports=[port, port],
    )
    failures = KindClusterHandler().check(
        KindClusterInputs(name="No Name", nodes=[node], images=["gone.tar"])
    )
    assert set(failures) == {"name", "nodes", "images"}


@pytest.mark.parametrize(
    ("token", "name"), [("WorkloadCluster", "variables"), ("AdmissionCheck", "manifest")]
)
def test_inputs_that_may_hold_credentials_are_secret(token: str, name: str) -> None:
    kind = package_schema("1.0", RESOURCE_TYPES)["resources"][f"capelin:index:{token}"]
    assert kind["inputProperties"][name]["secret"] is True
    assert kind["properties"][name]["secret"] is True


@pytest.mark.parametrize(
    ("version", "semantic"),
    [
        ("0.1.0", "0.1.0"),
        ("0.2.0rc1", "0.2.0-rc.1"),
        ("0.1.0.dev1795", "0.1.0-dev.1795"),
        ("0.2.0a1.dev3", "0.2.0-a.1.dev.3"),
    ],
)
def test_the_engine_gets_semantic_versions(version: str, semantic: str) -> None:
    assert semantic_version(version) == semantic
