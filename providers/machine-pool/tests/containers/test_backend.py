"""The backend `Containers`: machines follow their containers and Nodes."""

import base64
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from capelin.api import ObjectMeta
from capelin.api.core import Node, Secret
from capelin.controller import ObjectKey
from capelin.provider import Blocked
from capelin.testing.fake_client import FakeClient
from capelin_machine_pool.api import CapelinMachine, Containers, Faults, MachineSpec, Simulated
from capelin_machine_pool.backends import InstanceStatus, Workload
from capelin_machine_pool.backends.containers import ContainersBackend
from capelin_machine_pool.containers.desired import (
    ContainerPolicy,
    allowed_image,
    container_body,
)
from capelin_machine_pool.containers.engine import Engine
from capelin_machine_pool.desired import Instance
from capelin_machine_pool.reasons import Reason
from capelin_machine_pool.status import machine_conditions

from tests.support.fake_engine import FakeEngine, fake_engine

NAMESPACE, UID = "team", "0a1b2c3d-4e5f"
CONTAINER = "one-0a1b2c3d"
PROVIDER_ID = f"capelin:///{NAMESPACE}/demo/one"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = ContainerPolicy(images=("localhost/node:v1", "localhost/node:v2"), provider="/state")
DATA = b"#cloud-config\nruncmd: [kubeadm join]\n"


@dataclass
class FakeMachine:
    """The inside of a container: it carries out the scripts of the engine for bootstraps."""

    booted: bool = True
    marker: str = ""
    starts: int = 0
    exit: str | None = "0 yes"
    """The line that the bootstrap writes at its end. None while it runs."""
    scripts: list[str] = field(default_factory=list[str])

    def run(self, command: str, stdin: bytes) -> tuple[int, bytes, bytes]:
        script = stdin.decode()
        if "is-system-running" in command:
            return (0 if self.booted else 1), b"", b""
        if "Prints the state" in script:
            return 0, self._state().encode(), b""
        if "Marks the host" in script:
            self.marker = UID
        elif "Starts a script" in script:
            if self.starts:
                return 73, b"", b"already started"
            self.starts += 1
        else:
            self.scripts.append(script)
        return 0, b"", b""

    def _state(self) -> str:
        lines = ["boot=b", "hostname=one"]
        if self.marker:
            lines.append(f"marker={self.marker}")
        if self.starts:
            output = base64.b64encode(b"token: abcdef.0123456789abcdef").decode()
            lines += ["bootstrap.alive=yes", f"bootstrap.output={output}"]
            lines += [] if self.exit is None else [f"bootstrap.exit={self.exit}"]
        return "\n".join([*lines, "end="])


@dataclass
class Rig:
    """A machine with its backend, engine and clusters."""

    engine: Engine
    state: FakeEngine
    machine: FakeMachine
    client: FakeClient
    policy: ContainerPolicy = POLICY

    @property
    def backend(self) -> ContainersBackend:
        return ContainersBackend(self.engine, self.policy)

    async def look(self, desired: Instance, now: datetime = NOW) -> InstanceStatus:
        """One reconcile."""
        workload = Workload(client=self.client, kubeconfig=b"")
        assert await self.backend.allocate(desired, self.client) == PROVIDER_ID
        observed = await self.backend.observe(desired, workload, self.client)
        return await self.backend.apply(desired, observed, workload, self.client, now)

    async def joined(self, desired: Instance) -> InstanceStatus:
        """A machine whose kubelet has created its Node."""
        for _ in range(3):
            await self.look(desired)
        self.client.add(Node.read({"metadata": {"name": "one"}, "spec": {}}))
        await self.look(desired)
        return await self.look(desired)

    async def delete(self, uid: str = UID) -> None:
        machine = CapelinMachine(
            metadata=ObjectMeta(name="one", namespace=NAMESPACE, uid=uid),
            spec=MachineSpec(backend="Containers", version="v1.34.4"),
        )
        await self.backend.delete(machine, None, self.client, NOW)


@pytest.fixture
async def rig() -> AsyncGenerator[Rig]:
    machine, client = FakeMachine(), FakeClient()
    client.add(Secret.of("data", NAMESPACE, data={"value": DATA}))
    state = FakeEngine(run=machine.run)
    async with fake_engine(state) as engine:
        yield Rig(engine, state, machine, client)


def instance(**changes: Any) -> Instance:
    values: dict[str, Any] = {
        "key": ObjectKey(NAMESPACE, "one"),
        "cluster": "demo",
        "provider_id": PROVIDER_ID,
        "version": "v1.34.4",
        "failure_domain": None,
        "created": NOW,
        "simulated": Simulated(),
        "backend": "Containers",
        "bootstrap_secret": "data",
        "uid": UID,
        **changes,
    }
    return Instance(**values)


async def test_machine_becomes_a_node(rig: Rig) -> None:
    first = await rig.look(instance())
    assert (first.reason, first.changes_at) == (Reason.BOOTSTRAPPING, NOW + timedelta(seconds=1))
    assert base64.encodebytes(b"kubeadm join\n").decode() in rig.machine.scripts[0]
    assert (await rig.look(instance())).message == "it has joined, and its Node does not exist yet"
    rig.client.add(Node.read({"metadata": {"name": "one"}, "spec": {}}))
    assert not (await rig.look(instance())).running
    node = await rig.client.get(Node, "one")
    assert node.spec.provider_id == PROVIDER_ID
    last = await rig.look(instance())
    assert [address.address for address in last.addresses] == ["one", "172.17.0.2"]
    assert all(spec.status == "True" for spec in machine_conditions(last))
    assert rig.machine.starts == 1


async def test_machine_waits_until_its_container_has_booted(rig: Rig) -> None:
    rig.machine.booted = False
    assert (await rig.look(instance())).message == "its container boots"
    assert rig.machine.marker == ""


async def test_tenants_choose_only_images_that_the_administrator_allows(rig: Rig) -> None:
    desired = instance(containers=Containers(image="evil"))
    with pytest.raises(Blocked, match="does not run the image evil; choose one of") as blocked:
        await rig.look(desired)
    assert blocked.value.reason == Reason.CONTAINERS_NOT_ALLOWED
    rig.policy = ContainerPolicy()
    with pytest.raises(Blocked, match="or ask its administrator for --container-images"):
        await rig.look(instance())
    assert rig.state.requests == []
    # A machine without a container can go, and the engine may not exist.
    rig.engine = Engine("/nonexistent")
    await rig.delete()


@pytest.mark.parametrize(
    ("version", "image"),
    [
        ("v1.34.4", "registry:5000/kindest/node:v1.34.4"),
        ("v1.35.4", "kindest/node:v1.35.4@sha256:12"),
        ("v1.36.0", "localhost/node"),
    ],
)
def test_image_of_a_machine_has_its_version(version: str, image: str) -> None:
    images = (
        "localhost/node",
        "registry:5000/kindest/node:v1.34.4",
        "kindest/node:v1.35.4@sha256:12",
    )
    assert allowed_image(instance(version=version), ContainerPolicy(images=images)) == image


def test_container_has_its_identity_and_its_limits() -> None:
    settings = Containers(image="localhost/node:v2", cpu="1500m", memory="2Gi")
    body = container_body(instance(containers=settings), POLICY)
    assert body["Image"] == "localhost/node:v2"
    assert body["Labels"] == {
        "capelin.cluster.x-k8s.io/provider": "/state",
        "capelin.cluster.x-k8s.io/machine-uid": UID,
        "capelin.cluster.x-k8s.io/cluster": "team/demo",
        "capelin.cluster.x-k8s.io/machine": "team/one",
    }
    limits = {name: body["HostConfig"][name] for name in ("NanoCpus", "Memory", "MemorySwap")}
    assert limits == {"NanoCpus": 1_500_000_000, "Memory": 2 << 30, "MemorySwap": 2 << 30}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(16))
async def test_any_cut_connection_leads_to_one_container_and_one_bootstrap(
    rig: Rig, number: int, after: bool
) -> None:
    rig.state.cut_at, rig.state.cut_after = number, after
    for _ in range(3):
        with suppress(Blocked):
            await rig.look(instance())
    assert len(rig.state.requests) > number
    status = await rig.look(instance())
    assert status.message == "it has joined, and its Node does not exist yet"
    assert list(rig.state.containers) == [CONTAINER]
    assert rig.machine.starts == 1


async def test_failed_bootstrap_is_reported_without_secrets_and_not_repeated(rig: Rig) -> None:
    rig.machine.exit = "1 no"
    await rig.look(instance())
    status = await rig.look(instance())
    assert status.reason is Reason.BOOTSTRAP_FAILED
    assert "failed with exit code 1" in status.message
    assert "0123456789abcdef" not in status.message
    assert rig.machine.starts == 1


async def test_machine_whose_container_ends_is_not_ready_and_stays_a_member(rig: Rig) -> None:
    await rig.joined(instance())
    rig.state.containers[CONTAINER]["State"] = {"Status": "exited", "ExitCode": 137}
    status = await rig.look(instance(provisioned=True))
    conditions = {spec.type: spec for spec in machine_conditions(status)}
    assert conditions["Ready"].status == "False"
    assert conditions["NodeRunning"].reason == Reason.CONTAINER_ENDED
    assert conditions["NodeRunning"].message == "its container ended with exit code 137"
    assert rig.state.containers[CONTAINER]["State"]["Status"] == "exited"


@pytest.mark.parametrize("missing", ["container", "Node"])
async def test_machine_without_its_container_or_node_is_lost(rig: Rig, missing: str) -> None:
    await rig.joined(instance())
    if missing == "Node":
        await rig.client.delete(Node, "one")
    else:
        rig.state.containers.clear()
    status = await rig.look(instance(provisioned=True))
    assert (status.lost, status.message) == (True, f"its {missing} was deleted")
    assert rig.machine.starts == 1


async def test_container_that_ends_before_it_joins_is_not_started_again(rig: Rig) -> None:
    rig.machine.exit = None
    await rig.look(instance())
    rig.state.containers[CONTAINER]["State"] = {"Status": "exited", "ExitCode": 1}
    status = await rig.look(instance())
    assert (status.running, status.reason) == (False, Reason.CONTAINER_ENDED)


async def test_only_the_container_of_the_machine_is_removed(rig: Rig) -> None:
    await rig.look(instance())
    await rig.delete(uid="0a1b2c3d-other")
    assert list(rig.state.containers) == [CONTAINER]
    await rig.delete()
    await rig.delete()
    assert rig.state.containers == {}


async def test_deletion_waits_for_the_engine(rig: Rig) -> None:
    rig.engine = Engine("/nonexistent")
    with pytest.raises(Blocked, match="no container engine answers"):
        await rig.delete()


async def test_foreign_node_of_the_same_name_blocks_the_machine(rig: Rig) -> None:
    rig.client.add(Node.read({"metadata": {"name": "one"}, "spec": {"providerID": "other"}}))
    with pytest.raises(Blocked) as blocked:
        await rig.look(instance())
    assert blocked.value.reason == Reason.NODE_NAME_TAKEN


async def test_faults_pause_the_container(rig: Rig) -> None:
    settings = Containers(faults=Faults(flaps=100, after_seconds=60))
    desired = instance(containers=settings)
    await rig.joined(desired)
    states: list[str] = []
    for seconds in (59, 61, 149, 151):
        status = await rig.look(
            replace(desired, provisioned=True), NOW + timedelta(seconds=seconds)
        )
        assert status.running
        states.append(rig.state.containers[CONTAINER]["State"]["Status"])
    assert states == ["running", "paused", "paused", "running"]


async def test_machine_that_never_boots_gets_no_container(rig: Rig) -> None:
    settings = Containers(faults=Faults(never_boots=100))
    status = await rig.look(instance(containers=settings))
    assert status.message == "it never boots because of spec.containers.faults"
    assert rig.state.requests == []
