"""The order of the steps of a reconcile, and their effect on the status."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from annotated_types import MaxLen
from capelin.api import BaseObject, Definition, Model, Object, ObjectMeta, kind
from capelin.api.capi import Cluster, Machine
from capelin.client import Client
from capelin.contract import ConditionSpec, find_condition, reference_to
from capelin.controller import After, Context, Done, EventRecord, For, Owns, Result, Watches
from capelin.provider import (
    INFRA_CLUSTER,
    INFRA_MACHINE,
    Blocked,
    FailureDomain,
    InfraClusterContext,
    InfraClusterReconciler,
    InfraClusterSpec,
    InfraClusterStatus,
    InfraMachineContext,
    InfraMachineReconciler,
    InfraMachineSpec,
    InfraMachineStatus,
    Initialization,
    MachineAddress,
    Provider,
    ProviderReconciler,
)
from capelin.provider.blocked import describe
from capelin.provider.context import ContractBroken, StatusDraft
from capelin.provider.reconciler import Delete, Paused, Proceed, Released, gate
from capelin.testing.fake_client import FakeClient
from capelin.testing.waiting import until

from tests.support.cached import use_cache

GROUP = "infrastructure.cluster.x-k8s.io"


class BoxStatus(InfraMachineStatus):
    """A status with an additional field of the provider."""

    steps: Annotated[list[Annotated[str, MaxLen(20)]], MaxLen(20)] = []


@kind(group=GROUP, version="v1alpha1", definition=INFRA_CLUSTER)
class Shelf(Object[InfraClusterSpec, InfraClusterStatus]):
    """An infrastructure cluster."""


@kind(group=GROUP, version="v1alpha1", definition=INFRA_MACHINE)
class Box(Object[InfraMachineSpec, BoxStatus]):
    """A machine."""


class Shelves(InfraClusterReconciler[Shelf]):
    async def reconcile_normal(self, ctx: InfraClusterContext, shelf: Shelf) -> Result:
        assert ctx.cluster.name == shelf.name
        ctx.set_provisioned(failure_domains=[FailureDomain(name="east")])
        return Done()


Act = Callable[[InfraMachineContext, Box], Result]


def nothing(_ctx: InfraMachineContext, _box: Box) -> Result:
    return Done()


def unexpected(_ctx: InfraMachineContext, _box: Box) -> Result:
    pytest.fail("unexpected call")


class Boxes(InfraMachineReconciler[Box]):
    def __init__(self, act: Act = nothing, remove: Act = nothing) -> None:
        self.act = act
        self.remove = remove

    async def reconcile_normal(self, ctx: InfraMachineContext, box: Box) -> Result:
        return self.act(ctx, box)

    async def reconcile_delete(self, ctx: InfraMachineContext, box: Box) -> Result:
        return self.remove(ctx, box)


PROVIDER = Provider.of(
    "boxes",
    "InfrastructureProvider",
    version="v0.1.0",
    module="boxes",
    reconcilers=[Shelves, Boxes],
)


@dataclass
class Events:
    """Stores recorded events."""

    recorded: list[EventRecord] = field(default_factory=list[EventRecord])

    def record(self, record: EventRecord) -> None:
        self.recorded.append(record)

    @property
    def lines(self) -> list[str]:
        return [f"{event.type} {event.reason}: {event.note}" for event in self.recorded]


PROVISIONED = ["Normal Provisioned: it was created", "Normal Ready: it is as it should be"]
"""Events of a provisioned machine."""


class World:
    """A Cluster with a Machine and its box."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.events = Events()

    @property
    def ctx(self) -> Context:
        recorder: Any = self.events
        return Context(self.client, logging.getLogger(__name__), recorder)

    async def make(
        self, kind_: type[BaseObject], owner: BaseObject | None = None, **more: Any
    ) -> Any:
        resource = kind_.resource
        owners = [] if owner is None else [reference_to(owner, controller=True).dump()]
        created = await self.client.create(
            {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "metadata": {
                    "name": "demo",
                    "namespace": self.namespace,
                    "labels": {"cluster.x-k8s.io/cluster-name": "demo"},
                    "ownerReferences": owners,
                    **more.pop("metadata", {}),
                },
                **({"spec": {}} if kind_ in {Shelf, Box} else {}),
                **more,
            },
            resource=resource,
        )
        return kind_.read(created)

    async def provisioned(self) -> None:
        status = {"status": {"initialization": {"infrastructureProvisioned": True}}}
        await self.client.patch(Cluster, "demo", self.namespace, status, subresource="status")

    async def machine(self) -> Machine:
        spec = {
            "clusterName": "demo",
            "failureDomain": "west",
            "bootstrap": {"dataSecretName": "data"},
            "infrastructureRef": {"apiGroup": GROUP, "kind": "Box", "name": "demo"},
        }
        return await self.make(Machine, spec=spec)

    async def ready_box(self, **metadata: Any) -> None:
        spec = {"controlPlaneEndpoint": {"host": "demo", "port": 6443}}
        await self.make(Cluster, spec=spec)
        await self.provisioned()
        await self.make(Box, await self.machine(), metadata=metadata)

    async def box(self) -> Box:
        return await self.client.get(Box, "demo", self.namespace)

    async def reconcile(self, boxes: InfraMachineReconciler[Box]) -> tuple[Result, Box]:
        result = await boxes.reconcile(self.ctx, await self.box())
        return result, await self.box()


@pytest.fixture(scope="module")
def kinds(install_crds: Callable[..., None]) -> None:
    install_crds(PROVIDER)


@pytest.fixture
async def world(kinds: None, client: Client, namespace: str) -> AsyncGenerator[World]:  # noqa: ARG001
    yield World(client, namespace)
    for kind_ in (Box, Shelf):
        if await client.find(kind_, "demo", namespace) is not None:
            await client.patch(kind_, "demo", namespace, {"metadata": {"finalizers": None}})


def condition(obj: Any, type_: str) -> tuple[str, str, str]:
    """Status, reason and message."""
    current = find_condition(obj.status.conditions, type_)
    assert current is not None, obj.status.conditions
    return current.status, current.reason, current.message


# The class


def test_the_kind_determines_names_watches_and_rules() -> None:
    assert Boxes.kind is Box
    assert Boxes.name.fget is not None
    assert Boxes.finalizer == f"{GROUP}/box"
    assert Shelves.finalizer is None
    first, second = Boxes.watches
    assert first == For(Box)
    assert isinstance(second, Watches)
    assert second.kind is Machine
    assert {obj["kind"] for obj in PROVIDER.objects} == {
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
    assert [crd["spec"]["names"]["kind"] for crd in PROVIDER.crds] == [
        "Shelf",
        "ShelfTemplate",
        "Box",
        "BoxTemplate",
    ]
    labels = PROVIDER.crds[0]["metadata"]["labels"]
    assert labels["cluster.x-k8s.io/provider"] == "infrastructure-boxes"
    assert {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]} in PROVIDER.rules


def test_watches_of_a_subclass_add_to_or_replace_the_defaults() -> None:
    mine = Watches(Machine, to=lambda _machine: ())

    class Other(Boxes):
        watches = (Owns(Shelf), mine)
        finalizer = "example.com/mine"

    assert Other.watches == (For(Box), Owns(Shelf), mine)
    assert Other.finalizer == "example.com/mine"


class Plain(Model):
    """No fields of a contract."""


@kind(group=GROUP, version="v1alpha1", definition=Definition())
class Wrong(Object[Plain, Plain]):
    """A kind without the machine contract."""


def test_a_class_for_a_wrong_kind_fails_at_its_definition() -> None:
    with pytest.raises(TypeError, match=r"NoKind has to name its kind: InfraMachineReconciler\["):

        class NoKind(InfraMachineReconciler):  # pyright: ignore[reportMissingTypeArgument, reportUnusedClass]
            pass

    with pytest.raises(TypeError, match=r"NotAKind.*use a class with @kind"):

        class NotAKind(InfraMachineReconciler[int]):  # pyright: ignore[reportInvalidTypeArguments, reportUnusedClass]
            pass

    with pytest.raises(TypeError, match="spec of Wrong has to inherit from InfraMachineSpec"):

        class NoContract(InfraMachineReconciler[Wrong]):  # pyright: ignore[reportUnusedClass]
            pass

    with pytest.raises(TypeError, match=r"Twice is for Box: remove the other For\(...\)"):

        class Twice(Boxes):  # pyright: ignore[reportUnusedClass]
            watches = (For(Shelf),)

    with pytest.raises(TypeError, match="Held has a finalizer, so it cannot be status_only"):

        class Held(Boxes):  # pyright: ignore[reportUnusedClass]
            watches = (For(Box, status_only=True),)


@kind(group=GROUP, version="v1alpha1", definition=INFRA_MACHINE)
class HalfMachine(Object[InfraMachineSpec, Plain]):
    """A machine without the status of the contract."""


@kind(group=GROUP, version="v1alpha1")
class NoVersion(Object[InfraMachineSpec, BoxStatus]):
    """A machine without a contract version."""


def test_a_machine_needs_its_status_and_a_contract_version() -> None:
    with pytest.raises(TypeError, match="status of HalfMachine has to inherit"):

        class Half(InfraMachineReconciler[HalfMachine]):  # pyright: ignore[reportUnusedClass]
            pass

    with pytest.raises(TypeError, match="NoVersion names no contract version: use @kind"):

        class Unversioned(InfraMachineReconciler[NoVersion]):  # pyright: ignore[reportUnusedClass]
            pass


def provider_of(name: str = "boxes", version: str = "v0.1.0", **more: Any) -> Provider:
    return Provider.of(
        name,
        "InfrastructureProvider",
        version=version,
        module="boxes",
        reconcilers=[Shelves, Boxes],
        **more,
    )


@pytest.mark.parametrize("name", ["My Cloud!", "", "Boxes", "-a", "a-", "a" * 41])
def test_a_provider_rejects_invalid_names(name: str) -> None:
    with pytest.raises(ValueError, match="name of a provider consists of lowercase"):
        provider_of(name)


@pytest.mark.parametrize("version", ["0.1", "v0.1", "v0.1.0 ", "0.1.0"])
def test_a_provider_rejects_invalid_versions(version: str) -> None:
    with pytest.raises(ValueError, match=r"version of a provider looks like v0\.1\.0"):
        provider_of(version=version)


@pytest.mark.parametrize("version", ["v0.1.0", "v1.2.3-rc.1", "v0.2.0.dev3", "v1.0.0+build"])
def test_versions_of_releases_and_packages_are_accepted(version: str) -> None:
    assert provider_of(version=version).version == version


def test_a_provider_rejects_a_second_class_for_a_kind() -> None:
    @kind(group=GROUP, version="v1alpha1", name="Box", definition=INFRA_MACHINE)
    class OtherBox(Object[InfraMachineSpec, BoxStatus]):
        """The same kind in the same version."""

    with pytest.raises(ValueError, match=r"a Box that is not the one of Boxes \(v1alpha1\)"):
        provider_of(kinds=[OtherBox])


def test_a_second_version_is_served_with_its_template_and_the_reconcilers_is_stored() -> None:
    @kind(group=GROUP, version="v1beta1", name="Box", definition=INFRA_MACHINE)
    class LaterBox(Object[InfraMachineSpec, BoxStatus]):
        """The same kind in another version."""

    made = provider_of(kinds=[LaterBox])
    crds = {crd["spec"]["names"]["kind"]: crd for crd in made.crds}
    for name in ("Box", "BoxTemplate"):
        versions = crds[name]["spec"]["versions"]
        assert {v["name"]: v["storage"] for v in versions} == {"v1alpha1": True, "v1beta1": False}
        assert crds[name]["metadata"]["labels"]["cluster.x-k8s.io/v1beta2"] == "v1beta1_v1alpha1"
    assert not made.serves_webhooks


# The order


def test_a_pause_precedes_deletion_and_deletion_precedes_the_rest() -> None:
    box = Box.of("demo", "here", spec=InfraMachineSpec())
    metadata = ObjectMeta.read(
        {"name": "demo", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a/b"]}
    )
    paused = Cluster.read({"metadata": {"name": "demo"}, "spec": {"paused": True}})
    running = Cluster.read({"metadata": {"name": "demo"}})
    deleted = box.model_copy(update={"metadata": metadata})
    assert isinstance(gate(deleted, paused, "a/b"), Paused)
    assert gate(deleted, running, "a/b") == Delete()
    assert gate(deleted, None, "a/b") == Delete()
    assert gate(deleted, running, "another/one") == Released()
    assert gate(deleted, running, None) == Released()
    assert gate(box, running, "a/b") == Proceed()


async def test_a_machine_waits_for_owner_infrastructure_and_bootstrap_data(
    world: World,
) -> None:
    boxes = Boxes(unexpected)
    await world.make(Box)
    result, box = await world.reconcile(boxes)
    assert result == Done()
    assert condition(box, "Ready") == (
        "False",
        "WaitingForOwner",
        "no Machine owns it yet; refer to this Box in one",
    )
    machine = await world.machine()
    spec = {"controlPlaneEndpoint": {"host": "demo", "port": 6443}}
    await world.make(Cluster, spec=spec)
    owner = [reference_to(machine, controller=True).dump()]
    patch = {"metadata": {"ownerReferences": owner}}
    await world.client.patch(Box, "demo", world.namespace, patch)
    result, box = await world.reconcile(boxes)
    assert result == After(2.0)
    assert condition(box, "Ready")[1] == "WaitingForClusterInfrastructureReady"
    await world.provisioned()
    nothing = {
        "spec": {
            "bootstrap": {
                "dataSecretName": None,
                "configRef": {
                    "apiGroup": "bootstrap.cluster.x-k8s.io",
                    "kind": "KubeadmConfig",
                    "name": "x",
                },
            }
        }
    }
    await world.client.patch(Machine, "demo", world.namespace, nothing)
    _, box = await world.reconcile(boxes)
    assert condition(box, "Ready")[1] == "WaitingForBootstrapData"
    assert box.metadata.finalizers == []
    assert world.events.recorded == []


async def test_a_provisioned_machine_has_id_status_and_finalizer(world: World) -> None:
    await world.ready_box()
    order: list[str] = []

    def act(ctx: InfraMachineContext, box: Box) -> Result:
        order.append(",".join(box.metadata.finalizers))
        ctx.set_provisioned("box:///1", addresses=[MachineAddress(type="Hostname", address="a")])
        return After(7)

    result, box = await world.reconcile(Boxes(act))
    assert (result, order) == (After(7), [f"{GROUP}/box"])
    assert box.spec.provider_id == "box:///1"
    assert box.status is not None
    assert box.status.initialization.provisioned
    assert box.status.ready
    assert box.status.failure_domain == "west"
    assert box.status.observed_generation is not None
    assert condition(box, "Ready") == ("True", "Ready", "")
    assert condition(box, "Paused")[0] == "False"
    assert condition(box, "Deleting")[0] == "False"
    # Further reconciles write nothing.
    _, again = await world.reconcile(Boxes(act))
    _, again = await world.reconcile(Boxes(act))
    version = again.metadata.resource_version
    _, again = await world.reconcile(Boxes(act))
    assert again.metadata.resource_version == version
    assert world.events.lines == PROVISIONED


async def test_a_provider_id_never_changes(world: World) -> None:
    await world.ready_box()

    def provisioned(id_: str) -> Boxes:
        def act(ctx: InfraMachineContext, _box: Box) -> Result:
            ctx.set_provisioned(id_)
            return Done()

        return Boxes(act)

    await world.reconcile(provisioned("box:///1"))
    with pytest.raises(Exception, match="keeps its provider ID"):
        await world.reconcile(provisioned("box:///2"))
    box = await world.box()
    assert box.spec.provider_id == "box:///1"
    status, reason, message = condition(box, "Ready")
    assert (status, reason) == ("Unknown", "ReconcileFailed")
    assert "keeps its provider ID" in message
    assert world.events.lines == [*PROVISIONED, f"Warning ReconcileFailed: {message}"]


async def test_a_provisioned_machine_needs_a_provider_id(world: World) -> None:
    await world.ready_box()

    def act(_ctx: InfraMachineContext, box: Box) -> Result:
        box.status = BoxStatus(initialization=Initialization(provisioned=True))
        return Done()

    with pytest.raises(ContractBroken, match="needs a provider ID"):
        await world.reconcile(Boxes(act))
    box = await world.box()
    assert condition(box, "Ready")[:2] == ("False", "ReconcileFailed")
    assert box.status is not None
    assert not box.status.initialization.provisioned


async def test_a_milestone_stays_true(world: World) -> None:
    await world.ready_box()

    def act(ctx: InfraMachineContext, box: Box) -> Result:
        if box.spec.provider_id is None:
            ctx.set_provisioned("box:///1")
        else:
            ctx.set_status(BoxStatus())
        return Done()

    await world.reconcile(Boxes(act))
    with pytest.raises(ContractBroken, match=r"status\.initialization\.provisioned stays true"):
        await world.reconcile(Boxes(act))
    box = await world.box()
    assert box.status is not None
    assert box.status.initialization.provisioned
    assert condition(box, "Ready")[:2] == ("Unknown", "ReconcileFailed")


async def test_a_status_that_the_api_server_rejects_becomes_a_condition(world: World) -> None:
    await world.ready_box()

    def act(ctx: InfraMachineContext, _box: Box) -> Result:
        ctx.set_provisioned("box:///1")
        ctx.set_conditions(ConditionSpec("not a type", "True", "Disk"))
        return Done()

    with pytest.raises(Exception, match="not a type"):
        await world.reconcile(Boxes(act))
    box = await world.box()
    assert condition(box, "Ready")[:2] == ("False", "ReconcileFailed")
    assert len(world.events.lines) == 1


async def test_changed_conditions_are_logged_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.ready_box()
    caplog.set_level(logging.INFO)

    def act(_ctx: InfraMachineContext, _box: Box) -> Result:
        raise Blocked("NoPower", "the box has no power")

    for _ in range(3):
        await world.reconcile(Boxes(act))
    lines = [record.getMessage() for record in caplog.records if "Ready is" in record.getMessage()]
    assert lines == ["Ready is False (NoPower): the box has no power"]


# The status


async def test_a_status_changed_in_place_is_sent(world: World) -> None:
    await world.ready_box()

    def act(_ctx: InfraMachineContext, box: Box) -> Result:
        box.status = box.status or BoxStatus()
        box.status.steps.append("step")
        return Done()

    for count in (1, 2, 3):
        _, box = await world.reconcile(Boxes(act))
        assert box.status is not None
        assert box.status.steps == ["step"] * count


async def test_set_conditions_keeps_earlier_conditions(world: World) -> None:
    await world.ready_box()

    def act(*specs: ConditionSpec) -> Boxes:
        def act(ctx: InfraMachineContext, _box: Box) -> Result:
            ctx.set_conditions(*specs)
            return Done()

        return Boxes(act)

    await world.reconcile(act(ConditionSpec("DiskReady", "True", "Disk")))
    _, box = await world.reconcile(act(ConditionSpec("Ready", "False", "Mine", "why")))
    assert condition(box, "DiskReady")[0] == "True"
    assert condition(box, "Ready") == ("False", "Mine", "why")


async def test_set_status_rejects_another_class(world: World) -> None:
    await world.ready_box()

    def act(ctx: InfraMachineContext, _box: Box) -> Result:
        ctx.set_status(InfraClusterStatus())
        return Done()

    with pytest.raises(TypeError, match="BoxStatus, not InfraClusterStatus"):
        await world.reconcile(Boxes(act))


# Failures


async def test_blocked_becomes_a_condition_a_warning_and_a_retry(world: World) -> None:
    await world.ready_box()

    def act(ctx: InfraMachineContext, _box: Box) -> Result:
        ctx.set_conditions(ConditionSpec("DiskReady", "True", "Disk"))
        raise Blocked("QuotaExceeded", "no box is free", "ask for more", retry_seconds=30)

    for _ in range(3):
        result, _box = await world.reconcile(Boxes(act))
        assert result == After(30)
    box = await world.box()
    assert condition(box, "Ready") == ("False", "QuotaExceeded", "no box is free; ask for more")
    assert condition(box, "DiskReady")[0] == "True"
    assert world.events.lines == ["Warning QuotaExceeded: no box is free; ask for more"]


async def test_an_exception_becomes_a_condition_and_a_warning(world: World) -> None:
    await world.ready_box()

    def act(ctx: InfraMachineContext, box: Box) -> Result:
        if box.spec.provider_id is None:
            ctx.set_provisioned("box:///1")
            return Done()
        raise FileNotFoundError("no such box: /boxes/1")

    await world.reconcile(Boxes(act))
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            await world.reconcile(Boxes(act))
    expected = "FileNotFoundError: no such box: /boxes/1"
    assert condition(await world.box(), "Ready") == ("Unknown", "ReconcileFailed", expected)
    assert world.events.lines == [*PROVISIONED, f"Warning ReconcileFailed: {expected}"]
    box = await world.box()
    assert box.status is not None
    assert box.status.ready


async def test_blocked_in_one_of_several_tasks_counts(world: World) -> None:
    await world.ready_box()

    class Many(InfraMachineReconciler[Box]):
        async def reconcile_normal(self, _ctx: InfraMachineContext, _box: Box) -> Result:
            async def fail() -> None:
                raise Blocked("NoPower", "the box has no power")

            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                group.create_task(asyncio.sleep(60))
            return Done()

    result, box = await world.reconcile(Many())
    assert result == After(5.0)
    assert condition(box, "Ready")[1] == "NoPower"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError(), "ValueError"),
        (
            RuntimeError("took 5.03 s until 2026-01-02T03:04:05.678Z at 0x7f1234567890"),
            "RuntimeError: took ... s until ... at ...",
        ),
        (
            OSError("uid 6f0b1c9e-13d1-4b5e-9a58-2f5bd1c9a0f1\nBearer abc.def"),
            "OSError: uid ... Bearer (hidden)",
        ),
    ],
)
def test_describe_hides_changing_and_secret_values(error: Exception, text: str) -> None:
    assert describe(error) == text


async def test_a_reconcile_without_a_result_fails_with_its_name(world: World) -> None:
    await world.ready_box()

    def wrong(*_: object) -> Any:
        return None

    with pytest.raises(TypeError, match=r"Boxes.reconcile_normal returned None"):
        await world.reconcile(Boxes(wrong))


async def test_a_plain_function_runs_in_a_thread(world: World) -> None:
    await world.ready_box()
    threads: list[threading.Thread] = []

    class Plainly(InfraMachineReconciler[Box]):
        def reconcile_normal(self, ctx: InfraMachineContext, _box: Box) -> Result:
            threads.append(threading.current_thread())
            ctx.set_provisioned("box:///1")
            return Done()

    await Plainly().reconcile(world.ctx, await world.box())
    assert threads != [threading.main_thread()]
    assert (await world.box()).spec.provider_id == "box:///1"


@contextmanager
def one_default_thread(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """In a block, the event loop has a single thread for names and for `to_thread`.

    The loop is that of the whole test run, so it gets as many as before at the end.
    """
    with ThreadPoolExecutor(1) as single:
        loop.set_default_executor(single)
        try:
            yield
        finally:
            loop.set_default_executor(ThreadPoolExecutor())


async def test_cancelled_plain_function_ends_before_its_reconcile(world: World) -> None:
    await world.ready_box()
    begun, release = threading.Event(), threading.Event()

    class Plainly(InfraMachineReconciler[Box]):
        def reconcile_normal(self, ctx: InfraMachineContext, _box: Box) -> Result:
            _ = ctx
            begun.set()
            release.wait()
            return Done()

    loop = asyncio.get_running_loop()
    with one_default_thread(loop):
        task = asyncio.create_task(Plainly().reconcile(world.ctx, await world.box()))
        await until(begun.is_set)
        async with asyncio.timeout(5):
            assert await loop.getaddrinfo("127.0.0.1", 80), "names do not wait for plain functions"
        task.cancel()
        # Long enough for a cancelled task to end.
        _, running = await asyncio.wait({task}, timeout=0.05)
        release.set()
        assert running == {task}
        with pytest.raises(asyncio.CancelledError):
            await task


# Pause and deletion


async def test_a_pause_keeps_the_status_and_delays_deletion(world: World) -> None:
    await world.ready_box()

    def act(ctx: InfraMachineContext, _box: Box) -> Result:
        ctx.set_provisioned("box:///1")
        return Done()

    boxes = Boxes(act, unexpected)
    await world.reconcile(boxes)
    patch = {"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}}
    await world.client.patch(Box, "demo", world.namespace, patch)
    await world.client.delete(Box, "demo", world.namespace)
    result, box = await world.reconcile(boxes)
    assert result == After(15.0)
    assert condition(box, "Paused")[0] == "True"
    assert condition(box, "Ready")[0] == "True"
    assert box.status is not None
    assert box.status.initialization.provisioned


async def test_condition_from_before_a_pause_describes_its_generation(world: World) -> None:
    await world.ready_box()

    def act(ctx: InfraMachineContext, _box: Box) -> Result:
        ctx.set_provisioned("box:///1")
        return Done()

    boxes = Boxes(act)
    await world.reconcile(boxes)
    _, before = await world.reconcile(boxes)
    changed = {
        "metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}},
        "spec": {"failureDomain": "east"},
    }
    await world.client.patch(Box, "demo", world.namespace, changed)
    _, box = await world.reconcile(boxes)
    assert box.status is not None
    generations = {it.type: it.observed_generation for it in box.status.conditions}
    assert box.metadata.generation == generations["Paused"]
    assert before.metadata.generation == generations["Ready"]
    assert box.metadata.generation != before.metadata.generation


async def test_the_finalizer_stays_until_the_deletion_is_done(world: World) -> None:
    await world.ready_box()
    results: list[Result] = [After(3), Done()]
    boxes = Boxes(remove=lambda _ctx, _box: results.pop(0))
    await world.reconcile(boxes)
    await world.client.delete(Box, "demo", world.namespace)
    result, box = await world.reconcile(boxes)
    assert result == After(3)
    assert condition(box, "Deleting")[:2] == ("True", "Deleting")
    assert await boxes.reconcile(world.ctx, box) == Done()
    assert await world.client.find(Box, "demo", world.namespace) is None


async def test_the_deleting_condition_shows_why_a_deletion_is_blocked(world: World) -> None:
    await world.ready_box()

    def remove(_ctx: InfraMachineContext, _box: Box) -> Result:
        raise Blocked("InUse", "a tenant uses it")

    boxes = Boxes(remove=remove)
    await world.reconcile(boxes)
    await world.client.delete(Box, "demo", world.namespace)
    _, box = await world.reconcile(boxes)
    assert condition(box, "Deleting") == ("True", "InUse", "a tenant uses it")


async def test_the_deleting_condition_names_other_finalizers(world: World) -> None:
    await world.ready_box(finalizers=["example.com/others"])
    await world.client.delete(Box, "demo", world.namespace)
    _, box = await world.reconcile(Boxes(remove=unexpected))
    assert "example.com/others" in condition(box, "Deleting")[2]


async def test_an_externally_managed_cluster_is_not_changed(world: World) -> None:
    spec = {"controlPlaneEndpoint": {"host": "demo", "port": 6443}}
    cluster = await world.make(Cluster, spec=spec)
    await world.make(Shelf, cluster)
    shelf = await world.client.get(Shelf, "demo", world.namespace)
    await Shelves().reconcile(world.ctx, shelf)
    shelf = await world.client.get(Shelf, "demo", world.namespace)
    assert shelf.status is not None
    assert [domain.name for domain in shelf.status.failure_domains] == ["east"]
    patch = {"metadata": {"annotations": {"cluster.x-k8s.io/managed-by": "terraform"}}}
    shelf = await world.client.patch(Shelf, "demo", world.namespace, patch)
    paused = {"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}}
    shelf = await world.client.patch(Shelf, "demo", world.namespace, paused)
    await Shelves().reconcile(world.ctx, shelf)
    after = await world.client.get(Shelf, "demo", world.namespace)
    assert after.metadata.resource_version == shelf.metadata.resource_version


async def test_status_with_an_empty_list_is_sent_once(world: World) -> None:
    await world.make(Shelf)
    sent: list[bool] = []
    for names in ((), (), ("east",), (), ()):
        shelf = await world.client.get(Shelf, "demo", world.namespace)
        draft = StatusDraft(shelf, shelf.status or InfraClusterStatus())
        domains = [FailureDomain(name=name) for name in names]
        draft.set_fields(observed_generation=1, failure_domains=domains)
        sent.append(await draft.send(world.client, world.ctx.now()))
    assert sent == [True, False, True, True, False]
    shelf = await world.client.get(Shelf, "demo", world.namespace)
    assert shelf.status is not None
    assert shelf.status.failure_domains == []


def test_a_custom_kind_needs_no_contract() -> None:
    class Wrongs(ProviderReconciler[Wrong]):
        async def reconcile_normal(self, ctx: Any, wrong: Wrong) -> Result:
            assert ctx
            assert wrong
            return Done()

    assert Wrongs.watches[0] == For(Wrong)


async def test_frame_reads_from_the_cache_unless_the_object_is_being_deleted() -> None:
    client = FakeClient(Box)
    other, world = FakeClient(server=client.server), World(client, "team")
    await world.ready_box()

    def act(ctx: InfraMachineContext, _box: Box) -> Result:
        ctx.set_provisioned("box:///1")
        return Done()

    boxes = Boxes(act, unexpected)
    await world.reconcile(boxes)
    _, box = await world.reconcile(boxes)
    cluster = await client.get(Cluster, "demo", "team")
    machine = await client.get(Machine, "demo", "team")
    use_cache(client, box, cluster, machine)
    await boxes.reconcile(world.ctx, box.model_copy(deep=True))
    client.requests.clear()
    await boxes.reconcile(world.ctx, box.model_copy(deep=True))
    assert client.requests == []

    # The watch has delivered neither the pause nor the deletion.
    await other.patch(Cluster, "demo", "team", {"spec": {"paused": True}})
    await other.delete(Box, "demo", "team")
    assert await boxes.reconcile(world.ctx, await other.get(Box, "demo", "team")) == After(15.0)
