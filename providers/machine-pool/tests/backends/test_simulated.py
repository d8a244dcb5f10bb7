"""Simulated machines: their nodes, and when they are alive."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import cast

import pytest
from capelin.api import ObjectMeta
from capelin.api.core import Lease, Node
from capelin.client import Client
from capelin.controller import ObjectKey
from capelin.provider import Blocked
from capelin_embedded.binaries import Binaries
from capelin_machine_pool.api import CapelinMachine, Faults, MachineSpec, Simulated, Taint
from capelin_machine_pool.backends import InstanceStatus
from capelin_machine_pool.backends.kwok_launcher import MANAGED_LABEL
from capelin_machine_pool.backends.simulated import (
    KUBELET,
    MESSAGE,
    SIMULATED_ANNOTATION,
    NodeStep,
    SimulatedBackend,
    addresses,
    is_held,
    next_step,
    node_manifest,
    observed_status,
)
from capelin_machine_pool.desired import Instance, has_heartbeats

BOOTED = datetime(2026, 1, 1, tzinfo=UTC)


def desired(*, failure_domain: str | None = None, simulated: Simulated | None = None) -> Instance:
    return Instance(
        key=ObjectKey("team", "pool-1"),
        cluster="demo",
        provider_id="capelin:///team/demo/pool-1",
        version="v1.33.13",
        failure_domain=failure_domain,
        created=BOOTED,
        simulated=simulated or Simulated(),
    )


def faulty(faults: Faults) -> Instance:
    simulated = Simulated(startup_seconds=0, startup_jitter_seconds=0, faults=faults)
    return desired(simulated=simulated)


def at(seconds: int) -> datetime:
    return BOOTED + timedelta(seconds=seconds)


def test_a_node_has_the_machines_provider_id_version_and_addresses() -> None:
    node = node_manifest(desired(), BOOTED)
    assert node["metadata"]["name"] == "pool-1"
    assert node["spec"] == {"providerID": "capelin:///team/demo/pool-1"}
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.33.13"
    assert [address["type"] for address in node["status"]["addresses"]] == [
        "Hostname",
        "InternalIP",
        "InternalDNS",
    ]
    assert node["metadata"]["labels"][MANAGED_LABEL] == "fake"
    assert node["metadata"]["annotations"] == {SIMULATED_ANNOTATION: MESSAGE}


def test_a_node_reports_that_it_is_simulated_and_has_no_kubelet() -> None:
    status = node_manifest(desired(), BOOTED)["status"]
    assert {"type": "InternalDNS", "address": KUBELET} in status["addresses"]
    assert status["nodeInfo"]["containerRuntimeVersion"] == "simulated://capelin"
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["message"]) == ("True", MESSAGE)


def test_a_node_has_the_capacity_labels_and_taints_of_its_spec() -> None:
    simulated = Simulated(
        capacity={"cpu": "64", "nvidia.com/gpu": "8"},
        labels={"team": "red", "kubernetes.io/arch": "arm64"},
        taints=[Taint(key="gpu", value="yes", effect="NoSchedule")],
    )
    node = node_manifest(desired(failure_domain="east", simulated=simulated), BOOTED)
    assert node["status"]["capacity"] == {"cpu": "64", "nvidia.com/gpu": "8"}
    assert node["status"]["allocatable"] == node["status"]["capacity"]
    assert node["spec"]["taints"] == [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    assert node["metadata"]["labels"] == {
        "kubernetes.io/hostname": "pool-1",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "arm64",
        "team": "red",
        "topology.kubernetes.io/zone": "east",
        MANAGED_LABEL: "fake",
    }


def test_a_node_is_ready_from_the_start() -> None:
    conditions = {c["type"]: c for c in node_manifest(desired(), BOOTED)["status"]["conditions"]}
    assert {type_ for type_, c in conditions.items() if c["status"] == "True"} == {"Ready"}
    assert {c["lastTransitionTime"] for c in conditions.values()} == {"2026-01-01T00:00:00Z"}


def test_the_architecture_label_sets_the_architecture_of_the_node() -> None:
    node = node_manifest(
        desired(simulated=Simulated(labels={"kubernetes.io/arch": "arm64"})), BOOTED
    )
    assert node["status"]["nodeInfo"]["architecture"] == "arm64"


def test_addresses_follow_from_the_name_and_are_private() -> None:
    chosen = {addresses(f"pool-{index}")[1].address for index in range(100)}
    assert len(chosen) == 100
    assert all(ip_address(address) in ip_network("10.128.0.0/10") for address in chosen)
    assert addresses("pool-1") == addresses("pool-1")
    assert addresses("pool-1")[0].address == "pool-1"


def test_a_machine_without_a_fault_stays_alive() -> None:
    assert has_heartbeats(faulty(Faults()), at(10**6)) == (True, None)


def test_a_machine_that_never_boots_has_no_change_of_heartbeats() -> None:
    assert has_heartbeats(faulty(Faults(never_boots=100)), at(10**6)) == (True, None)


def test_a_machine_dies_at_its_time_and_stays_dead() -> None:
    machine = faulty(Faults(dies=100, after_seconds=60))
    assert has_heartbeats(machine, at(59)) == (True, at(60))
    assert has_heartbeats(machine, at(60)) == (False, None)
    assert has_heartbeats(machine, at(10**6)) == (False, None)


@pytest.mark.parametrize(
    ("seconds", "alive", "changes"),
    [
        (59, True, 60),
        (60, False, 150),
        (149, False, 150),
        (150, True, 240),
        (239, True, 240),
        (240, False, 330),
    ],
)
def test_flapping_machine_changes_state(seconds: int, alive: bool, changes: int) -> None:
    machine = faulty(Faults(flaps=100, after_seconds=60))
    assert has_heartbeats(machine, at(seconds)) == (alive, at(changes))


STARTING = InstanceStatus(running=False, message="starting")


def test_a_machine_without_a_node_starts_unless_it_was_provisioned() -> None:
    machine = desired()
    assert observed_status(machine, None) == STARTING
    lost = observed_status(replace(machine, provisioned=True), None)
    assert (lost.running, lost.lost) == (True, True)
    assert next_step(replace(machine, provisioned=True), lost, at(60)) == NodeStep(status=lost)


def test_a_machine_gets_its_node_after_it_boots() -> None:
    machine = desired(simulated=Simulated(startup_seconds=10, startup_jitter_seconds=0))
    early = next_step(machine, STARTING, at(9))
    assert (early.create_node, early.status.changes_at) == (False, at(10))
    step = next_step(machine, STARTING, at(10))
    assert (step.create_node, step.set_heartbeats, step.status.running) == (True, None, True)


def test_a_new_node_has_heartbeats_even_if_its_fault_is_due_at_once() -> None:
    step = next_step(faulty(Faults(dies=100, after_seconds=0)), STARTING, at(0))
    assert (step.create_node, step.status.heartbeats) == (True, True)
    assert step.status.changes_at == at(2)


def test_a_machine_that_never_boots_gets_no_node() -> None:
    step = next_step(faulty(Faults(never_boots=100)), STARTING, at(10**6))
    assert (step.create_node, step.status.running) == (False, False)
    assert "never boots" in step.status.message


@pytest.mark.parametrize(
    ("heartbeats", "seconds", "change"),
    [(True, 59, None), (True, 60, False), (False, 60, None), (False, 59, True)],
)
def test_heartbeats_are_corrected(heartbeats: bool, seconds: int, change: bool | None) -> None:
    machine = faulty(Faults(dies=100, after_seconds=60))
    observed = InstanceStatus(running=True, heartbeats=heartbeats)
    assert next_step(machine, observed, at(seconds)).set_heartbeats is change


@pytest.mark.parametrize(("seconds", "held"), [(None, False), (0, False), (1, False), (2, True)])
def test_a_lease_counts_as_held_some_time_after_its_creation(
    seconds: int | None, held: bool
) -> None:
    metadata = ObjectMeta(name="pool-1", creation_timestamp=at(0))
    lease = None if seconds is None else Lease(metadata=metadata)
    assert is_held(lease, at(seconds or 0)) is held


def node(provider_id: str | None) -> Node:
    return Node.read({"metadata": {"name": "pool-1"}, "spec": {"providerID": provider_id}})


@pytest.mark.parametrize("provider_id", [None, "aws:///i-1", "capelin:///other/demo/pool-1"])
def test_a_machine_does_not_adopt_a_foreign_node(provider_id: str | None) -> None:
    with pytest.raises(Blocked) as blocked:
        observed_status(desired(), node(provider_id))
    assert blocked.value.reason == "NodeNameTaken"
    assert observed_status(desired(), node(desired().provider_id)).running


@pytest.mark.parametrize(("provider_id", "deleted"), [("aws:///i-1", False), ("own", True)])
async def test_a_machine_does_not_delete_a_foreign_node(provider_id: str, deleted: bool) -> None:
    class Workload:
        """A cluster with one Node."""

        gone = False

        async def find(self, *_: object) -> Node:
            return node(provider_id)

        async def delete(self, *_: object, **__: object) -> bool:
            self.gone = True
            return True

    workload = Workload()
    backend = SimulatedBackend(Path("unused"), cast("Binaries", None))
    machine = CapelinMachine.of("one", "team", spec=MachineSpec(provider_id="own"))
    client = cast("Client", workload)
    await backend.delete(machine, client, client, datetime.now(UTC))
    assert workload.gone is deleted
