"""What the reconciler does about control planes: on a real API server, with a backend of words."""

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from capelin.api.views.capi import Cluster, Machine
from capelin.api.views.core import Secret
from capelin.client import Client, Config
from capelin.contract.conditions import ConditionSpec
from capelin.contract.labels import CLUSTER_NAME_LABEL, PAUSED_ANNOTATION, WATCH_LABEL
from capelin.contract.owners import reference_to
from capelin.controller import Context, Manager, ObjectKey
from capelin.controller.events import Recorder
from capelin.testing.managers import running
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane, Spec
from capelin_control_plane.backends import Observed, Part, Problem, Site
from capelin_control_plane.certificates import Authorities
from capelin_control_plane.desired import RENEW_ANNOTATION, ControlPlane
from capelin_control_plane.reconciler import ADDRESS_ANNOTATION, FINALIZER, ControlPlanes

ADDRESS = "127.64.0.9"
Check = Callable[[], Awaitable[object]]

pytestmark = pytest.mark.usefixtures("provider_crds")


@dataclass
class Told:
    """A backend that remembers what it was told, and does what the test says."""

    seen: Observed = field(default_factory=Observed)
    error: OSError | None = None
    told: list[str] = field(default_factory=list[str])
    taken: list[str] = field(default_factory=list[str])
    due: list[set[datetime | None]] = field(default_factory=list[set[datetime | None]])
    """Of each move, the moments that have come."""

    async def claim(
        self, wanted: ControlPlane, authorities: Authorities, address: str | None
    ) -> Site | Problem:
        assert authorities.ca
        self.told.append("claim" if address is None else "claim again")
        self.taken = [ADDRESS]
        return Site(ADDRESS, ADDRESS, wanted.port)

    async def find(self, namespace: str, cluster: str, ca_certificate_pem: bytes) -> str | None:
        assert (bool(namespace), cluster, bool(ca_certificate_pem)) == (True, "one", True)
        return next(iter(self.taken), None)

    async def move(
        self,
        key: ObjectKey,
        site: Site,
        wanted: ControlPlane,
        authorities: Authorities,
        now: datetime,
    ) -> Observed:
        assert all((key, site, wanted, authorities, now))
        self.told.append("move")
        self.due.append({wanted.rollout_after, wanted.renew_made_before})
        if self.error is not None:
            raise self.error
        return self.seen

    async def look_after(self, key: ObjectKey, cluster: str, address: str) -> None:
        assert (key.name, cluster) == ("one", "one")
        self.told.append(f"look after {address}")

    def workload(self, site: Site) -> Config:
        raise AssertionError(f"nothing answers at {site}")

    async def release(self, key: ObjectKey) -> None:
        self.told.append(f"release {key.name}")

    async def remove(self, key: ObjectKey, cluster: str, address: str) -> None:
        assert (key.name, cluster) == ("one", "one")
        self.told.append(f"remove {address}")


@dataclass
class Place:
    """A namespace with a Cluster and its control plane, and a manager that looks after it."""

    client: Client
    namespace: str
    config: Config
    backend: Told = field(default_factory=Told)

    async def create(self, **labels: str) -> None:
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
        mine = CapelinControlPlane.of("one", self.namespace, spec=Spec(version="v1.34.4"))
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

    async def mine(self) -> CapelinControlPlane:
        return await self.client.get(CapelinControlPlane, "one", self.namespace)

    async def annotate(self, **annotations: str | None) -> None:
        patch = {"metadata": {"annotations": annotations}}
        await self.client.patch(CapelinControlPlane, "one", self.namespace, patch)

    async def condition(self, type_: str) -> ConditionSpec | None:
        status = (await self.mine()).status
        conditions = status.conditions if status else []
        return next((ConditionSpec.of(one) for one in conditions if one.type == type_), None)

    async def says(self, type_: str, status: str, reason: str) -> bool:
        found = await self.condition(type_)
        return found is not None and (found.status, found.reason) == (status, reason)

    async def gone(self) -> bool:
        return await self.client.find(CapelinControlPlane, "one", self.namespace) is None

    def managed(self, **options: Any) -> AbstractAsyncContextManager[Manager]:
        reconciler = ControlPlanes(self.backend)
        return running(reconciler, config=self.config, namespace=self.namespace, **options)


@pytest.fixture
def place(client: Client, namespace: str, kubeconfig: Path) -> Place:
    return Place(client, namespace, Config.from_kubeconfig(kubeconfig))


STARTING = Part(
    name="kube-apiserver-0",
    component="kube-apiserver",
    version="v1.34.4",
    ready=False,
    current=True,
)


async def test_a_paused_control_plane_is_let_go_and_left_alone(place: Place) -> None:
    await place.create()
    await place.annotate(**{PAUSED_ANNOTATION: ""})
    async with place.managed():
        await until(lambda: place.says("Paused", "True", "Paused"))
        assert set(place.backend.told) == {"release one"}
        assert (await place.mine()).metadata.finalizers == []
        await place.client.delete(CapelinControlPlane, "one", place.namespace)
        await until(place.gone)
    assert "remove" not in " ".join(place.backend.told)


async def test_a_paused_cluster_pauses_its_control_plane_and_wakes_it_again(place: Place) -> None:
    await place.create()
    await place.client.patch(Cluster, "one", place.namespace, {"spec": {"paused": True}})
    async with place.managed():
        await until(lambda: place.says("Paused", "True", "Paused"))
        assert set(place.backend.told) == {"release one"}
        await place.client.patch(Cluster, "one", place.namespace, {"spec": {"paused": False}})
        await until(lambda: place.says("Paused", "False", "NotPaused"))
        assert "move" in place.backend.told


async def test_the_deletion_of_a_paused_control_plane_waits(place: Place) -> None:
    await place.create()
    async with place.managed():
        await until(lambda: place.says("Paused", "False", "NotPaused"))
        await place.annotate(**{PAUSED_ANNOTATION: ""})
        await until(lambda: place.says("Paused", "True", "Paused"))
        await place.client.delete(CapelinControlPlane, "one", place.namespace)
        await asyncio.sleep(0.5)
        assert (await place.mine()).metadata.finalizers == [FINALIZER]
        await place.annotate(**{PAUSED_ANNOTATION: None})
        await until(place.gone)
    assert place.backend.told[-1] == f"remove {ADDRESS}"


async def test_a_watch_filter_leaves_others_alone(place: Place) -> None:
    await place.create()
    async with place.managed(watch_filter="mine"):
        await asyncio.sleep(0.5)
        assert place.backend.told == []
        labels = {"metadata": {"labels": {WATCH_LABEL: "mine"}}}
        await place.client.patch(CapelinControlPlane, "one", place.namespace, labels)
        await until(lambda: place.says("Paused", "False", "NotPaused"))


async def test_without_a_cluster_it_waits(place: Place) -> None:
    await place.client.create(
        CapelinControlPlane.of("one", place.namespace, spec=Spec(version="v1.34.4"))
    )
    async with place.managed():
        await until(lambda: place.says("Available", "False", "WaitingForOwnerCluster"))
    assert place.backend.told == []


async def test_where_it_is_is_written_down_before_anything_runs_there(place: Place) -> None:
    await place.create()
    place.backend.error = OSError(errno.ENOSPC, "No space left on device", "/state/plan.json")
    async with place.managed():
        await until(lambda: place.says("Available", "False", "DiskFull"))
        mine = await place.mine()
        assert mine.metadata.annotations[ADDRESS_ANNOTATION] == ADDRESS
        place.backend.error = None
        place.backend.seen = Observed(parts=(STARTING,))
        await until(lambda: place.says("Available", "False", "NotInitialized"))


async def test_nobody_is_told_where_the_api_is_before_it_answers(place: Place) -> None:
    await place.create()
    place.backend.seen = Observed(parts=(STARTING,))

    async def told() -> tuple[bool, bool]:
        kubeconfig = await place.client.find(Secret, "one-kubeconfig", place.namespace)
        return (await place.mine()).spec.control_plane_endpoint is not None, kubeconfig is not None

    async def all_told() -> bool:
        return await told() == (True, True)

    async with place.managed():
        await until(lambda: place.says("Available", "False", "NotInitialized"))
        assert await told() == (False, False)
        place.backend.seen = Observed(parts=(replace(STARTING, ready=True),))
        await place.annotate(look="again")
        await until(all_told)


async def test_it_is_removed_where_nobody_could_write_down_that_it_is_there(place: Place) -> None:
    await place.create()
    async with place.managed():
        await until(lambda: place.says("Paused", "False", "NotPaused"))
    # As if it had been killed between the one and the other.
    await place.annotate(**{ADDRESS_ANNOTATION: None})
    await place.client.delete(CapelinControlPlane, "one", place.namespace)
    async with place.managed():
        await until(place.gone)
    assert place.backend.told[-1] == f"remove {ADDRESS}"


async def test_it_goes_after_its_workers(place: Place) -> None:
    await place.create()
    async with place.managed():
        await until(lambda: place.says("Paused", "False", "NotPaused"))
        await place.create_worker()
        await place.client.delete(CapelinControlPlane, "one", place.namespace)
        await until(lambda: place.says("Deleting", "True", "WaitingForWorkersDeletion"))
        assert "remove" not in " ".join(place.backend.told)
        await place.client.delete(Machine, "worker", place.namespace)
        await until(place.gone)


async def test_what_another_provider_looks_after_is_not_called_down(place: Place) -> None:
    await place.create()
    place.backend.seen = Observed(problem=Problem("LookedAfterElsewhere", "another provider"))
    async with place.managed():
        await until(lambda: place.says("Available", "False", "LookedAfterElsewhere"))
    assert await place.condition("EtcdClusterAvailable") is None


async def test_a_bad_word_is_answered_with_the_field(place: Place) -> None:
    await place.create()
    await place.client.patch(
        Cluster,
        "one",
        place.namespace,
        {"spec": {"clusterNetwork": {"services": {"cidrBlocks": ["shoal"]}}}},
    )
    async with place.managed():
        await until(lambda: place.says("Available", "False", "InvalidSpec"))
    found = await place.condition("Available")
    assert found is not None
    assert "spec.clusterNetwork.services.cidrBlocks" in found.message


@pytest.mark.parametrize("reason", ["InvalidSpec", "CertificatesMissing"])
async def test_what_runs_is_looked_after_while_nobody_can_say_what_is_wanted(
    place: Place, reason: str
) -> None:
    await place.create()
    await place.annotate(**{ADDRESS_ANNOTATION: ADDRESS})
    if reason == "InvalidSpec":
        bad = {"spec": {"clusterNetwork": {"services": {"cidrBlocks": ["shoal"]}}}}
        await place.client.patch(Cluster, "one", place.namespace, bad)
    async with place.managed():
        await until(lambda: place.says("Available", "False", reason))
    assert set(place.backend.told) == {f"look after {ADDRESS}"}


@pytest.mark.parametrize("asked", ["rollout", "renewal"])
async def test_what_is_asked_for_later_begins_when_its_moment_comes(
    place: Place, asked: str
) -> None:
    await place.create()
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=4)
    patch = {
        "rollout": {"spec": {"rollout": {"after": moment.isoformat()}}},
        "renewal": {"metadata": {"annotations": {RENEW_ANNOTATION: moment.isoformat()}}},
    }[asked]
    await place.client.patch(CapelinControlPlane, "one", place.namespace, patch)
    async with place.managed():

        async def has_begun() -> bool:
            return any(moment in due for due in place.backend.due)

        await until(has_begun)
    assert place.backend.due[0] == {None}


async def test_one_that_went_without_us_is_let_go_and_what_runs_goes_on(place: Place) -> None:
    await place.create()
    await place.create_worker()
    async with place.managed():
        await until(lambda: place.says("Paused", "False", "NotPaused"))
        await place.client.delete(CapelinControlPlane, "one", place.namespace)
        await until(lambda: place.says("Deleting", "True", "WaitingForWorkersDeletion"))
        # By hand, as somebody does who waits in vain.
        await place.client.patch(
            CapelinControlPlane, "one", place.namespace, {"metadata": {"finalizers": None}}
        )

        async def is_let_go() -> bool:
            return "release one" in place.backend.told

        await until(is_let_go)
    assert "remove" not in " ".join(place.backend.told)


async def test_another_one_of_the_same_name_does_not_meet_what_was_the_first_ones(
    place: Place,
) -> None:
    recorder = Recorder(place.client, "test", "test", now=lambda: datetime.now(UTC))
    at = Context(place.client, logging.getLogger(__name__), recorder)
    reconciler = ControlPlanes(place.backend)
    await place.create()
    await reconciler.reconcile(at, await place.mine())
    await reconciler.reconcile(at, await place.mine())
    assert place.backend.told == ["claim", "move", "claim again", "move"]
    first = await place.mine()
    await place.client.patch(
        CapelinControlPlane, "one", place.namespace, {"metadata": {"finalizers": None}}
    )
    await place.client.delete(CapelinControlPlane, "one", place.namespace)
    second = CapelinControlPlane.of("one", place.namespace, spec=first.spec)
    second.metadata.labels = first.metadata.labels
    await reconciler.reconcile(at, await place.client.create(second))
    assert place.backend.told[4:] == ["release one", "claim", "move"]


@pytest.fixture
async def copied(place: Place) -> Place:
    """A control plane that is paused, and a copy of it in its namespace."""
    await place.create()
    await place.annotate(**{PAUSED_ANNOTATION: "", ADDRESS_ANNOTATION: ADDRESS})
    original = await place.mine()
    copy = CapelinControlPlane.of("two", place.namespace, spec=original.spec)
    copy.metadata.labels = original.metadata.labels
    copy.metadata.annotations = {ADDRESS_ANNOTATION: ADDRESS}
    copy.metadata.finalizers = [FINALIZER]
    await place.client.create(copy)
    return place


async def test_a_copy_moves_nothing_of_its_original(copied: Place) -> None:
    async def says_whose_it_is() -> bool:
        copy = await copied.client.get(CapelinControlPlane, "two", copied.namespace)
        said = copy.status.conditions if copy.status else []
        return any(
            (one.type, one.reason) == ("Available", "WaitingForOwnerCluster")
            and "of Cluster one names one" in one.message
            for one in said
        )

    async with copied.managed():
        await until(says_whose_it_is)
    assert {"claim", "claim again", "move"}.isdisjoint(copied.backend.told)


async def test_a_copy_goes_without_its_original(copied: Place) -> None:
    await copied.create_worker()
    await copied.client.delete(CapelinControlPlane, "two", copied.namespace)

    async def is_gone() -> bool:
        return await copied.client.find(CapelinControlPlane, "two", copied.namespace) is None

    async with copied.managed():
        await until(is_gone)
    assert "remove" not in " ".join(copied.backend.told)


async def test_what_another_one_was_to_replace_that_never_came_is_stopped(place: Place) -> None:
    await place.create()
    async with place.managed():
        await until(lambda: "move" in place.backend.told)
        reference = {"spec": {"controlPlaneRef": {"name": "two"}}}
        await place.client.patch(Cluster, "one", place.namespace, reference)
        await place.client.delete(CapelinControlPlane, "one", place.namespace)
        await until(place.gone)
    assert "remove" in " ".join(place.backend.told)
