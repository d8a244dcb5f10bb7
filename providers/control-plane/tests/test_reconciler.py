"""The reconciler of control planes, on a real API server and with a fake backend."""

import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster, Machine
from capelin.api.core import Secret
from capelin.client import Client, Config, Server, Unreachable
from capelin.contract import (
    BLOCK_MOVE_ANNOTATION,
    CLUSTER_NAME_LABEL,
    PAUSED_ANNOTATION,
    ConditionSpec,
    reference_to,
)
from capelin.controller import Context, Manager, ObjectKey, Recorder
from capelin.provider import Blocked
from capelin.testing.fake_client import FakeClient
from capelin.testing.managers import running
from capelin.testing.waiting import until
from capelin_control_plane.api import BackendName, CapelinControlPlane, Spec
from capelin_control_plane.api.pod_settings import Pods
from capelin_control_plane.backends import ReadSnapshot, orphans
from capelin_control_plane.backends.orphans import Orphans
from capelin_control_plane.desired.control_plane import (
    ADDRESS_ANNOTATION,
    RENEW_ANNOTATION,
    ControlPlane,
)
from capelin_control_plane.desired.instances import Endpoint, InstanceStatus, Observed
from capelin_control_plane.etcd.api import EtcdApi, MembershipError
from capelin_control_plane.keys.certificates import Authorities
from capelin_control_plane.reconciler import (
    FINALIZER,
    CapelinControlPlaneReconciler,
    allocated_address,
)

ADDRESS = "127.64.0.9"
Check = Callable[[], Awaitable[object]]

pytestmark = pytest.mark.usefixtures("provider_crds")


@dataclass
class FakeBackend:
    """A backend that records its calls and observes what the test sets."""

    observed: Observed = field(default_factory=Observed)
    blocked: Blocked | None = None
    calls: list[str] = field(default_factory=list[str])
    due: list[set[datetime | None]] = field(default_factory=list[set[datetime | None]])
    """For each observation, the scheduled moments that have passed."""
    keys: set[ObjectKey] = field(default_factory=set[ObjectKey])
    """Control planes with resources in the backend."""
    versions: set[str] = field(default_factory=set[str])
    """The desired versions."""
    steps: int = 0
    """The number of remaining steps."""
    ended: frozenset[str] = frozenset()
    """Instances that have ended, of a control plane that is paused."""

    async def allocate(
        self, key: ObjectKey, desired: ControlPlane, authorities: Authorities, address: str | None
    ) -> Endpoint:
        assert key.name == "one"
        assert authorities.ca
        self.calls.append("allocate" if address is None else "allocate again")
        return Endpoint(ADDRESS, ADDRESS, desired.port)

    async def observe(self, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane) -> Observed:
        assert (key.name, endpoint.address) == ("one", ADDRESS)
        self.calls.append("observe")
        self.versions.add(desired.version)
        self.due.append({desired.rollout_after, desired.renew_issued_before})
        if self.blocked is not None:
            raise self.blocked
        return self.observed

    async def apply(
        self, key: ObjectKey, endpoint: Endpoint, desired: ControlPlane, observed: Observed
    ) -> bool:
        del key, endpoint, desired, observed
        self.steps -= 1
        return self.steps >= 0

    async def keep_running(self, key: ObjectKey, address: str) -> None:
        self.calls.append(f"keep {key.name} at {address} running")

    async def release(self, key: ObjectKey) -> None:
        self.calls.append(f"release {key.name}")

    async def start_again(self, key: ObjectKey, address: str) -> frozenset[str]:
        self.calls.append(f"start {key.name} at {address} again")
        return self.ended

    async def allocated(self) -> set[ObjectKey]:
        return self.keys

    async def delete(self, key: ObjectKey) -> None:
        self.calls.append(f"delete {key.name}")

    async def close(self) -> None:
        pass

    def etcd(
        self, key: ObjectKey, index: int | None = None
    ) -> AbstractAsyncContextManager[EtcdApi]:
        raise MembershipError(f"{key} has no etcd {index}")

    async def prepare_restore(
        self, key: ObjectKey, desired: ControlPlane, read: ReadSnapshot, *, bump: int
    ) -> None:
        raise AssertionError(f"{key} has no data: {desired.restore}, {read}, {bump}")

    def client_config(self, endpoint: Endpoint) -> Config:
        raise AssertionError(f"nothing answers at {endpoint}")


INFRASTRUCTURE = {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "Other", "name": "one"}


@dataclass
class Scene:
    """A namespace with a Cluster, its control plane and a manager."""

    client: Client
    namespace: str
    config: Config
    backend: FakeBackend = field(default_factory=FakeBackend)
    served: Sequence[BackendName] = ("Processes",)
    grace: timedelta | None = None
    wake: Callable[[ObjectKey], None] = field(init=False)

    async def create(
        self, backend: BackendName | None = "Processes", pods: Pods | None = None, **labels: str
    ) -> None:
        cluster = await self.client.create(
            Cluster.read(
                {
                    "metadata": {"name": "one", "namespace": self.namespace},
                    "spec": {
                        "controlPlaneRef": {
                            "apiGroup": CapelinControlPlane.resource.group,
                            "kind": "CapelinControlPlane",
                            "name": "one",
                        },
                    },
                }
            )
        )
        spec = Spec(version="v1.34.4", backend=backend, pods=pods)
        mine = CapelinControlPlane.of("one", self.namespace, spec=spec)
        mine.metadata.labels = {CLUSTER_NAME_LABEL: "one", **labels}
        mine.metadata.owner_references = [reference_to(cluster, controller=True)]
        await self.client.create(mine)

    async def create_worker(self) -> None:
        worker = {
            "metadata": {
                "name": "worker",
                "namespace": self.namespace,
                "labels": {CLUSTER_NAME_LABEL: "one"},
            },
            "spec": {
                "clusterName": "one",
                "bootstrap": {"dataSecretName": "none"},
                "infrastructureRef": {"apiGroup": "x.io", "kind": "None", "name": "none"},
            },
        }
        await self.client.create(Machine.read(worker))

    async def mine(self, name: str = "one") -> CapelinControlPlane:
        return await self.client.get(CapelinControlPlane, name, self.namespace)

    async def apply_as_topology(self, spec: dict[str, Any]) -> None:
        resource = CapelinControlPlane.resource
        manifest: Unstructured = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": "one", "namespace": self.namespace},
            "spec": spec,
        }
        await self.client.apply(manifest, resource=resource, manager="capi-topology")

    async def annotate(self, **annotations: str | None) -> None:
        patch = {"metadata": {"annotations": annotations}}
        await self.client.patch(CapelinControlPlane, "one", self.namespace, patch)

    async def condition(self, type_: str, of: str = "one") -> ConditionSpec | None:
        status = (await self.mine(of)).status
        conditions = status.conditions if status else []
        return next((ConditionSpec.of(one) for one in conditions if one.type == type_), None)

    async def has_condition(self, type_: str, status: str, reason: str, of: str = "one") -> bool:
        found = await self.condition(type_, of)
        return found is not None and (found.status, found.reason) == (status, reason)

    async def gone(self) -> bool:
        return await self.client.find(CapelinControlPlane, "one", self.namespace) is None

    def managed(self, **options: Any) -> AbstractAsyncContextManager[Manager]:
        served: Mapping[BackendName, FakeBackend] = dict.fromkeys(self.served, self.backend)
        reconciler = CapelinControlPlaneReconciler(served, orphan_grace=self.grace)
        self.wake = reconciler.wake
        return running(reconciler, config=self.config, namespace=self.namespace, **options)


@pytest.fixture
def scene(client: Client, namespace: str, kubeconfig: Path) -> Scene:
    return Scene(client, namespace, Config.from_kubeconfig(kubeconfig))


STARTING = InstanceStatus(
    name="kube-apiserver-0",
    component="kube-apiserver",
    version="v1.34.4",
    ready=False,
    current=True,
)


async def test_a_paused_control_plane_is_released_and_not_deleted(scene: Scene) -> None:
    await scene.create()
    await scene.annotate(**{PAUSED_ANNOTATION: ""})
    async with scene.managed():
        await until(lambda: scene.has_condition("Paused", "True", "Paused"))
        assert set(scene.backend.calls) == {"release one"}
        assert (await scene.mine()).metadata.finalizers == []
        await scene.client.delete(CapelinControlPlane, "one", scene.namespace)
        await until(scene.gone)
    assert "delete" not in " ".join(scene.backend.calls)


async def test_ended_components_of_a_paused_control_plane_start_again(scene: Scene) -> None:
    await scene.create()
    scene.backend.observed = Observed(statuses=(replace(STARTING, ready=True),))
    async with scene.managed():
        await until(lambda: scene.has_condition("Paused", "False", "NotPaused"))
        scene.backend.ended = frozenset({"kube-apiserver-0", "etcd-0"})
        await scene.annotate(**{PAUSED_ANNOTATION: ""})
        await until(lambda: scene.has_condition("Available", "Unknown", "EndedWhilePaused"))
        condition = await scene.condition("Available")
        assert condition is not None
        assert "start again: etcd-0, kube-apiserver-0" in condition.message
        assert f"start one at {ADDRESS} again" in scene.backend.calls
        scene.backend.ended = frozenset()
        scene.wake(ObjectKey(scene.namespace, "one"))
        await until(lambda: scene.has_condition("Available", "Unknown", "Paused"))


async def test_the_deletion_of_a_paused_control_plane_waits(scene: Scene) -> None:
    await scene.create()
    async with scene.managed():
        await until(lambda: scene.has_condition("Paused", "False", "NotPaused"))
        await scene.annotate(**{PAUSED_ANNOTATION: ""})
        await until(lambda: scene.has_condition("Paused", "True", "Paused"))
        calls = len(scene.backend.calls)
        await scene.client.delete(CapelinControlPlane, "one", scene.namespace)

        async def is_looked_at() -> bool:
            return len(scene.backend.calls) > calls

        await until(is_looked_at)
        assert (await scene.mine()).metadata.finalizers == [FINALIZER]
        await scene.annotate(**{PAUSED_ANNOTATION: None})
        await until(scene.gone)
    assert "delete one" in scene.backend.calls


async def test_the_address_is_recorded_before_any_process_starts(scene: Scene) -> None:
    await scene.create()
    scene.backend.blocked = Blocked("DiskFull", "No space left on device")
    async with scene.managed():
        await until(lambda: scene.has_condition("Available", "False", "DiskFull"))
        mine = await scene.mine()
        assert mine.metadata.annotations[ADDRESS_ANNOTATION] == ADDRESS
        scene.backend.blocked = None
        scene.backend.observed = Observed(statuses=(STARTING,))
        await until(lambda: scene.has_condition("Available", "False", "NotInitialized"))


async def test_control_plane_at_rest_needs_no_request(scene: Scene) -> None:
    await scene.create()
    scene.backend.observed = Observed(statuses=(STARTING,))

    async def cost(manager: Manager) -> float:
        """The manager's requests for a reconcile that changes nothing."""
        before, calls = _requests(manager), scene.backend.calls.count("observe")
        scene.wake(ObjectKey(scene.namespace, "one"))
        await until(lambda: scene.backend.calls.count("observe") > calls)
        return _requests(manager) - before

    async with scene.managed() as manager:
        await until(lambda: scene.has_condition("Available", "False", "NotInitialized"))
        # Each Secret is read once after it was created.
        costs = [await cost(manager) for _ in range(6)]
    assert min(costs) == 0, costs


async def test_address_is_found_although_the_cache_is_old() -> None:
    client = FakeClient(CapelinControlPlane)
    old = await client.create(CapelinControlPlane.of("one", "team", spec=Spec(version="v1.34.4")))
    patch = {"metadata": {"annotations": {ADDRESS_ANNOTATION: ADDRESS}}}
    await client.patch(CapelinControlPlane, "one", "team", patch)
    recorder = Recorder(client, "test", "test", now=lambda: datetime.now(UTC))
    ctx = Context(client, logging.getLogger(__name__), recorder)
    assert await allocated_address(ctx, old) == ADDRESS


def _requests(manager: Manager) -> float:
    return sum(
        sample.value
        for metric in manager.metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "rest_client_requests_total"
    )


async def test_next_step_follows_without_an_event(scene: Scene) -> None:
    scene.backend.steps = 2
    await scene.create()
    async with scene.managed():
        await until(lambda: scene.backend.steps < 0)


async def test_the_endpoint_is_published_after_the_api_server_is_ready(scene: Scene) -> None:
    await scene.create()
    scene.backend.observed = Observed(statuses=(STARTING,))

    async def endpoint_and_kubeconfig() -> tuple[bool, bool]:
        kubeconfig = await scene.client.find(Secret, "one-kubeconfig", scene.namespace)
        return (await scene.mine()).spec.control_plane_endpoint is not None, kubeconfig is not None

    async def both_exist() -> bool:
        return await endpoint_and_kubeconfig() == (True, True)

    async with scene.managed():
        await until(lambda: scene.has_condition("Available", "False", "NotInitialized"))
        assert await endpoint_and_kubeconfig() == (False, False)
        scene.backend.observed = Observed(statuses=(replace(STARTING, ready=True),))
        await scene.annotate(look="again")
        await until(both_exist)


@dataclass
class SilentCluster(FakeBackend):
    """A control plane that accepts connections and never answers."""

    port: int = 0

    def client_config(self, endpoint: Endpoint) -> Config:
        del endpoint
        return Config(Server(f"http://127.0.0.1:{self.port}"))


async def test_a_silent_workload_cluster_does_not_delay_the_status(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capelin_control_plane.reconciler._WORKLOAD_SECONDS", 0.1)
    monkeypatch.setattr("capelin_control_plane.reconciler._RETRY_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        scene.backend = SilentCluster(port=silent.getsockname()[1])
        scene.backend.observed = Observed(statuses=(replace(STARTING, ready=True),))
        await scene.create()
        async with scene.managed():
            await until(
                lambda: scene.has_condition("WorkloadObjectsAvailable", "False", "NotApplied")
            )
            # The reconciler observes it again after its requeue delay.
            scene.backend.observed = Observed(statuses=(STARTING,))
            await until(lambda: scene.has_condition("Available", "False", "NotAvailable"))


async def test_a_control_plane_without_a_recorded_address_is_deleted(scene: Scene) -> None:
    await scene.create()
    async with scene.managed():
        await until(lambda: scene.has_condition("Paused", "False", "NotPaused"))
    # Like a kill between allocation and the annotation.
    await scene.annotate(**{ADDRESS_ANNOTATION: None})
    await scene.client.delete(CapelinControlPlane, "one", scene.namespace)
    async with scene.managed():
        await until(scene.gone)
    assert "delete one" in scene.backend.calls


async def test_a_control_plane_is_deleted_after_its_workers(scene: Scene) -> None:
    await scene.create()
    async with scene.managed():
        await until(lambda: scene.has_condition("Paused", "False", "NotPaused"))
        await scene.create_worker()
        await scene.client.delete(CapelinControlPlane, "one", scene.namespace)
        await until(lambda: scene.has_condition("Deleting", "True", "WaitingForWorkersDeletion"))
        assert "delete" not in " ".join(scene.backend.calls)
        # Also after a restart of the provider or the machine.
        assert scene.backend.calls[-1] == f"keep one at {ADDRESS} running"
        await scene.client.delete(Machine, "worker", scene.namespace)
        await until(scene.gone)


async def test_a_control_plane_of_another_provider_is_not_reported_as_down(scene: Scene) -> None:
    await scene.create()
    scene.backend.observed = Observed(
        blocked=Blocked("ManagedByAnotherProvider", "another provider")
    )
    async with scene.managed():
        await until(lambda: scene.has_condition("Available", "False", "ManagedByAnotherProvider"))
    assert await scene.condition("EtcdClusterAvailable") is None


async def test_an_invalid_value_is_reported_with_its_field(scene: Scene) -> None:
    await scene.create()
    await scene.client.patch(
        Cluster,
        "one",
        scene.namespace,
        {"spec": {"clusterNetwork": {"services": {"cidrBlocks": ["shoal"]}}}},
    )
    async with scene.managed():
        await until(lambda: scene.has_condition("Available", "False", "InvalidConfiguration"))
    found = await scene.condition("Available")
    assert found is not None
    assert "spec.clusterNetwork.services.cidrBlocks" in found.message


async def test_an_unavailable_backend_starts_nothing(scene: Scene) -> None:
    await scene.create(backend="Pods")
    async with scene.managed():
        await until(lambda: scene.has_condition("Available", "False", "BackendNotAvailable"))
    condition = await scene.condition("Available")
    assert condition is not None
    assert "does not run control planes on Pods" in condition.message
    assert "--backends=pods" in condition.message
    assert "allocate" not in scene.backend.calls


@pytest.mark.parametrize("reason", ["InvalidConfiguration", "CertificatesMissing"])
async def test_invalid_spec_keeps_processes_running(scene: Scene, reason: str) -> None:
    await scene.create()
    await scene.annotate(**{ADDRESS_ANNOTATION: ADDRESS})
    if reason == "InvalidConfiguration":
        bad = {"spec": {"clusterNetwork": {"services": {"cidrBlocks": ["shoal"]}}}}
        await scene.client.patch(Cluster, "one", scene.namespace, bad)
    async with scene.managed():
        await until(lambda: scene.has_condition("Available", "False", reason))
    assert set(scene.backend.calls) == {f"keep one at {ADDRESS} running"}


@pytest.mark.parametrize("change", ["rollout", "renewal"])
async def test_scheduled_change_starts_at_its_time(scene: Scene, change: str) -> None:
    await scene.create()
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)
    patch = {
        "rollout": {"spec": {"rollout": {"after": moment.isoformat()}}},
        "renewal": {"metadata": {"annotations": {RENEW_ANNOTATION: moment.isoformat()}}},
    }[change]
    await scene.client.patch(CapelinControlPlane, "one", scene.namespace, patch)
    async with scene.managed():

        async def has_begun() -> bool:
            return any(moment in due for due in scene.backend.due)

        await until(has_begun)
    assert datetime.now(UTC) >= moment, "it has begun too early"


async def test_a_control_plane_without_its_finalizer_is_released_and_keeps_running(
    scene: Scene,
) -> None:
    await scene.create()
    await scene.create_worker()
    async with scene.managed():
        await until(lambda: scene.has_condition("Paused", "False", "NotPaused"))
        await scene.client.delete(CapelinControlPlane, "one", scene.namespace)
        await until(lambda: scene.has_condition("Deleting", "True", "WaitingForWorkersDeletion"))
        # By hand, like an impatient administrator.
        await scene.client.patch(
            CapelinControlPlane, "one", scene.namespace, {"metadata": {"finalizers": None}}
        )

        async def is_released() -> bool:
            return "release one" in scene.backend.calls

        await until(is_released)
    assert "delete" not in " ".join(scene.backend.calls)


@pytest.fixture
async def copied(scene: Scene) -> Scene:
    """A control plane that is paused, and a copy of it in its namespace."""
    await scene.create()
    await scene.annotate(**{PAUSED_ANNOTATION: "", ADDRESS_ANNOTATION: ADDRESS})
    original = await scene.mine()
    copy = CapelinControlPlane.of("two", scene.namespace, spec=original.spec)
    copy.metadata.labels = original.metadata.labels
    copy.metadata.annotations = {ADDRESS_ANNOTATION: ADDRESS}
    copy.metadata.finalizers = [FINALIZER]
    await scene.client.create(copy)
    return scene


async def test_a_copy_does_not_change_its_original(copied: Scene) -> None:
    async def names_its_owner() -> bool:
        copy = await copied.client.get(CapelinControlPlane, "two", copied.namespace)
        conditions = copy.status.conditions if copy.status else []
        return any(
            (one.type, one.reason) == ("Available", "WaitingForOwnerCluster")
            and "of Cluster one names CapelinControlPlane one" in one.message
            for one in conditions
        )

    async with copied.managed():
        await until(names_its_owner)
    assert {"allocate", "allocate again", "observe"}.isdisjoint(copied.backend.calls)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (None, "Cluster one has no spec.controlPlaneRef yet"),
        (
            {"apiGroup": CapelinControlPlane.resource.group, "kind": "Other", "name": "one"},
            "the spec.controlPlaneRef of Cluster one names Other one",
        ),
    ],
    ids=["no reference", "another kind"],
)
async def test_a_control_plane_that_its_cluster_does_not_name_starts_nothing(
    scene: Scene, reference: dict[str, str] | None, message: str
) -> None:
    await scene.create()
    patch = {"spec": {"controlPlaneRef": reference, "infrastructureRef": INFRASTRUCTURE}}
    await scene.client.patch(Cluster, "one", scene.namespace, patch)

    async def waits() -> bool:
        condition = await scene.condition("Available")
        return condition is not None and message in condition.message

    async with scene.managed():
        await until(waits)
    condition = await scene.condition("Available")
    assert condition is not None
    assert condition.reason == "WaitingForOwnerCluster"
    assert {"allocate", "allocate again", "observe"}.isdisjoint(scene.backend.calls)


async def test_a_deleted_copy_keeps_its_original(copied: Scene) -> None:
    await copied.create_worker()
    await copied.client.delete(CapelinControlPlane, "two", copied.namespace)

    async def is_gone() -> bool:
        return await copied.client.find(CapelinControlPlane, "two", copied.namespace) is None

    async with copied.managed():
        await until(is_gone)
    assert "delete" not in " ".join(copied.backend.calls)


async def test_a_control_plane_is_deleted_even_if_its_replacement_is_missing(scene: Scene) -> None:
    await scene.create()
    async with scene.managed():
        await until(lambda: "observe" in scene.backend.calls)
        reference = {"spec": {"controlPlaneRef": {"name": "two"}}}
        await scene.client.patch(Cluster, "one", scene.namespace, reference)
        await scene.client.delete(CapelinControlPlane, "one", scene.namespace)
        await until(scene.gone)
    assert "delete" in " ".join(scene.backend.calls)


@pytest.mark.parametrize(
    ("grace", "requested", "is_deleted"),
    [
        (None, True, False),
        (timedelta(hours=1), True, False),
        (timedelta(0), True, True),
        (timedelta(0), False, False),
    ],
)
async def test_orphans_are_logged_and_deleted_after_a_grace_period(
    scene: Scene,
    grace: timedelta | None,
    requested: bool,
    is_deleted: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await scene.create()
    scene.backend.keys = {ObjectKey(scene.namespace, name) for name in ("one", "lost")}
    recorder = Recorder(scene.client, "test", "test", now=lambda: datetime.now(UTC))
    ctx = Context(scene.client, logging.getLogger(__name__), recorder)
    swept = Orphans([scene.backend], grace)
    if requested:
        swept.request_deletion(ObjectKey(scene.namespace, "lost"))
    for _ in range(2):
        await swept.look(ctx)
    assert ("delete lost" in scene.backend.calls) == is_deleted
    assert "delete one" not in scene.backend.calls
    assert f"{scene.namespace}/lost has no object any more" in caplog.text
    assert f"{scene.namespace}/one has no object" not in caplog.text


async def test_orphan_is_deleted_after_a_failure(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.backend.keys = {ObjectKey(scene.namespace, "lost")}
    recorder = Recorder(scene.client, "test", "test", now=lambda: datetime.now(UTC))
    ctx = Context(scene.client, logging.getLogger(__name__), recorder)
    swept = Orphans([scene.backend], timedelta())
    swept.request_deletion(ObjectKey(scene.namespace, "lost"))
    failures: list[Exception] = [Unreachable("no answer"), OSError("disk full")]
    delete = scene.backend.delete

    async def fail_first(key: ObjectKey) -> None:
        if failures:
            raise failures.pop()
        await delete(key)

    monkeypatch.setattr(scene.backend, "delete", fail_first)
    for _ in range(3):
        await swept.look(ctx)
    assert scene.backend.calls == ["delete lost"]


def test_watches_of_other_kinds_select_by_label() -> None:
    watches = CapelinControlPlaneReconciler.watches
    assert {watch.kind for watch in watches if not watch.labels} == {CapelinControlPlane, Cluster}


@pytest.mark.parametrize(
    ("served", "pods", "chosen"),
    [
        (("Pods", "Processes"), None, "Pods"),
        (("Processes", "Pods"), None, "Processes"),
        (("Processes", "Pods"), Pods(), "Pods"),
    ],
)
async def test_an_unset_backend_becomes_the_first_served_one_and_stays(
    scene: Scene, served: Sequence[BackendName], pods: Pods | None, chosen: BackendName
) -> None:
    scene.served = served
    await scene.create(None, pods)
    async with scene.managed():
        await until(lambda: "observe" in scene.backend.calls)
    mine = await scene.mine()
    assert mine.spec.backend == chosen
    assert (BLOCK_MOVE_ANNOTATION in mine.metadata.annotations) == (chosen == "Pods")
    # A topology applies its fields again, and its template has no backend.
    await scene.apply_as_topology({"version": "v1.34.4", "replicas": 2})
    scene.served = tuple(reversed(served))
    scene.backend.calls.clear()
    async with scene.managed():
        await until(lambda: "observe" in scene.backend.calls)
    assert (await scene.mine()).spec.backend == chosen


async def test_a_backend_stays_if_its_clusterclass_omits_it(scene: Scene) -> None:
    await scene.create(None)
    await scene.apply_as_topology({"version": "v1.34.4", "backend": "Processes"})
    async with scene.managed():
        await until(lambda: "observe" in scene.backend.calls)
    await scene.apply_as_topology({"version": "v1.34.4"})
    assert (await scene.mine()).spec.backend == "Processes"


async def test_settings_of_pods_are_rejected_by_processes(scene: Scene) -> None:
    await scene.create(None, Pods())
    async with scene.managed():
        await until(lambda: scene.has_condition("Available", "False", "BackendNotAvailable"))
    assert (await scene.mine()).spec.backend is None


async def test_a_pause_without_a_request_keeps_a_control_plane_on_pods_running(
    scene: Scene,
) -> None:
    scene.served = ("Pods",)
    await scene.create("Pods")
    async with scene.managed():
        await until(lambda: "observe" in scene.backend.calls)
        # clusterctl pauses the Cluster, then waits until the annotation disappears.
        await scene.client.patch(Cluster, "one", scene.namespace, {"spec": {"paused": True}})
        await until(lambda: scene.has_condition("Paused", "True", "Paused"))
        assert "release one" in scene.backend.calls
    mine = await scene.mine()
    assert BLOCK_MOVE_ANNOTATION in mine.metadata.annotations


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "_PERIOD_SECONDS", 0.1)


async def remove_finalizer(scene: Scene) -> None:
    patch = {"metadata": {"finalizers": None}}
    await scene.client.patch(CapelinControlPlane, "one", scene.namespace, patch)
    await until(scene.gone)


@pytest.mark.usefixtures("often")
async def test_deletion_without_a_finalizer_is_finished(
    scene: Scene,
) -> None:
    scene.grace = timedelta(0)
    scene.backend.keys = {ObjectKey(scene.namespace, "one")}
    await scene.create()
    await scene.create_worker()
    async with scene.managed():
        await until(lambda: "observe" in scene.backend.calls)
        await scene.client.delete(CapelinControlPlane, "one", scene.namespace)
        await until(lambda: scene.has_condition("Deleting", "True", "WaitingForWorkersDeletion"))
        assert "delete one" not in scene.backend.calls
        await remove_finalizer(scene)
        await until(lambda: "delete one" in scene.backend.calls)


@pytest.mark.usefixtures("often")
async def test_a_control_plane_that_was_moved_is_never_deleted(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.grace = timedelta(0)
    scene.backend.keys = {ObjectKey(scene.namespace, "one")}
    await scene.create()
    async with scene.managed():
        await until(lambda: "observe" in scene.backend.calls)
        # Like clusterctl.
        await scene.client.patch(Cluster, "one", scene.namespace, {"spec": {"paused": True}})
        await until(lambda: scene.has_condition("Paused", "True", "Paused"))
        await scene.client.delete(CapelinControlPlane, "one", scene.namespace)
        await remove_finalizer(scene)
        await until(lambda: "has no object any more: it keeps running" in caplog.text)
    assert "delete one" not in scene.backend.calls


async def test_a_version_is_stored_with_its_v_and_keeps_its_owner(scene: Scene) -> None:
    await scene.create()
    resource = CapelinControlPlane.resource

    def applied(version: str) -> Unstructured:
        return {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": "one", "namespace": scene.namespace},
            "spec": {"version": version},
        }

    await scene.client.apply(applied("1.34.4"), resource=resource, manager="user")

    async def stored() -> str:
        raw = await scene.client.get(resource, "one", scene.namespace)
        return raw["spec"]["version"]

    assert await stored() == "1.34.4"
    async with scene.managed():

        async def has_v() -> bool:
            return await stored() == "v1.34.4"

        await until(has_v)
        await until(lambda: "observe" in scene.backend.calls)
        await scene.client.apply(applied("v1.34.5"), resource=resource, manager="user", force=False)
        await until(lambda: "v1.34.5" in scene.backend.versions)
    assert await stored() == "v1.34.5"
    assert scene.backend.versions <= {"v1.34.4", "v1.34.5"}
