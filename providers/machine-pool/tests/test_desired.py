"""Desired machines of a pool."""

from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from capelin.api import ObjectMeta
from capelin.api.capi import Machine, MachinePool
from capelin.controller import ObjectKey
from capelin_machine_pool.api import (
    CapelinMachine,
    CapelinMachinePool,
    Faults,
    MachinePoolSpec,
    MachineSpec,
    Simulated,
)
from capelin_machine_pool.desired import (
    FINALIZER,
    REVISION_LABEL,
    Fault,
    Instance,
    desired_instance,
    fault_of,
    has_revision,
    pool_machine,
    revision_of,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = [f"pool-{index}" for index in range(1000)]
BOOTSTRAP: dict[str, Any] = {
    "files": [{"path": "/etc/motd", "content": "hello"}],
    "joinConfiguration": {
        "nodeRegistration": {"name": "{{ name }}"},
        "discovery": {"bootstrapToken": {"token": "aaaaaa.0123456789abcdef"}},
    },
}


def pool(**spec: Any) -> CapelinMachinePool:
    return CapelinMachinePool(
        metadata=ObjectMeta(name="pool", namespace="team", uid="pool-uid"),
        spec=MachinePoolSpec.read(spec),
    )


def machine_pool(version: str | None = "v1.33.13", **spec: Any) -> MachinePool:
    return MachinePool.read(
        {
            "metadata": {"name": "workers", "namespace": "team"},
            "spec": {**spec, "template": {"spec": {"version": version}}},
        }
    )


def desired(name: str = "pool-1", simulated: Simulated | None = None) -> Instance:
    return Instance(
        key=ObjectKey("team", name),
        cluster="demo",
        provider_id=f"capelin:///team/demo/{name}",
        version="v1.33.13",
        failure_domain=None,
        created=NOW,
        simulated=simulated or Simulated(),
    )


def changed(path: tuple[str, ...], value: object) -> Mapping[str, Any]:
    spec = deepcopy(BOOTSTRAP)
    place: Any = spec
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return spec


def test_a_new_version_is_another_revision() -> None:
    assert revision_of(pool(), machine_pool("v1.33.13"), {}) != revision_of(
        pool(), machine_pool("v1.34.4"), {}
    )


@pytest.mark.parametrize(
    "simulated",
    [
        {"capacity": {"cpu": "8"}},
        {"labels": {"a": "b"}},
        {"taints": [{"key": "a", "effect": "NoSchedule"}]},
        {"startupSeconds": 9},
        {"faults": {"dies": 10}},
    ],
)
def test_another_template_is_another_revision(simulated: dict[str, Any]) -> None:
    before = revision_of(pool(), machine_pool(), BOOTSTRAP)
    assert revision_of(pool(simulated=simulated), machine_pool(), BOOTSTRAP) != before


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("files",), []),
        (("preKubeadmCommands",), ["true"]),
        (("joinConfiguration", "nodeRegistration"), {"name": "other"}),
    ],
)
def test_another_bootstrap_config_is_another_revision(path: tuple[str, ...], value: object) -> None:
    before = revision_of(pool(), machine_pool(), BOOTSTRAP)
    assert revision_of(pool(), machine_pool(), changed(path, value)) != before


@pytest.mark.parametrize(
    "value", [None, {}, {"bootstrapToken": {"token": "bbbbbb.0123456789abcdef"}}]
)
def test_a_new_bootstrap_token_is_the_same_revision(value: object) -> None:
    before = revision_of(pool(), machine_pool(), BOOTSTRAP)
    after = changed(("joinConfiguration", "discovery"), value)
    assert revision_of(pool(), machine_pool(), after) == before


def test_added_discovery_of_the_cluster_is_the_same_revision() -> None:
    before = revision_of(pool(), machine_pool(), {})
    after = {"joinConfiguration": {"discovery": {"bootstrapToken": {"token": "a"}}}}
    assert revision_of(pool(), machine_pool(), after) == before


def test_replicas_and_rollout_settings_do_not_change_the_revision() -> None:
    before = revision_of(pool(), machine_pool(), BOOTSTRAP)
    other = pool(
        providerID="x",
        providerIDList=["a"],
        rollingUpdate={"maxSurge": "50%", "maxUnavailable": 2, "deletePolicy": "Newest"},
    )
    assert revision_of(other, machine_pool(replicas=9, providerIDList=["a"]), BOOTSTRAP) == before


def test_an_explicit_default_does_not_change_the_revision() -> None:
    defaults = Simulated().model_dump(mode="json", by_alias=True)
    before = revision_of(pool(), machine_pool(), BOOTSTRAP)
    assert revision_of(pool(simulated=defaults), machine_pool(), BOOTSTRAP) == before


def test_a_revision_is_a_label_and_the_same_in_every_process() -> None:
    assert revision_of(pool(), machine_pool(), BOOTSTRAP) == "4ddcf7d8361d148b"


def test_a_machine_of_a_pool_has_its_labels_owner_and_revision() -> None:
    made = pool_machine(
        pool(simulated={"labels": {"a": "b"}}),
        machine_pool(),
        "demo",
        name="pool-abc",
        revision="r1",
        failure_domain="east",
    )
    assert made.metadata.labels == {
        "cluster.x-k8s.io/cluster-name": "demo",
        "cluster.x-k8s.io/pool-name": "workers",
        REVISION_LABEL: "r1",
    }
    assert made.metadata.finalizers == [FINALIZER]
    (owner,) = made.metadata.owner_references
    assert (owner.kind, owner.uid, owner.controller) == ("CapelinMachinePool", "pool-uid", False)
    assert made.spec.provider_id == "capelin:///team/demo/pool-abc"
    assert (made.spec.version, made.spec.failure_domain) == ("v1.33.13", "east")
    assert made.spec.simulated.labels == {"a": "b"}
    assert has_revision(made, "r1")
    assert not has_revision(made, "r2")


def test_a_machine_takes_a_missing_version_from_its_owner() -> None:
    machine = CapelinMachine(
        metadata=ObjectMeta(
            name="m",
            namespace="team",
            creation_timestamp=NOW,
            labels={"cluster.x-k8s.io/cluster-name": "demo"},
        ),
        spec=MachineSpec(),
    )
    owner = Machine.read(
        {"metadata": {"name": "m"}, "spec": {"version": "v1.33.13", "failureDomain": "east"}}
    )
    instance = desired_instance(machine, owner)
    assert (instance.version, instance.failure_domain) == ("v1.33.13", "east")
    assert instance.provider_id == "capelin:///team/demo/m"


def test_settings_of_the_pool_override_those_of_the_owner() -> None:
    machine = CapelinMachine(
        metadata=ObjectMeta(
            name="m",
            namespace="team",
            creation_timestamp=NOW,
            labels={"cluster.x-k8s.io/cluster-name": "demo"},
        ),
        spec=MachineSpec(version="v1.34.4", failure_domain="west", provider_id="capelin:///x"),
    )
    owner = Machine.read(
        {"metadata": {"name": "m"}, "spec": {"version": "v1.33.13", "failureDomain": "east"}}
    )
    instance = desired_instance(machine, owner)
    assert (instance.version, instance.failure_domain, instance.provider_id) == (
        "v1.34.4",
        "west",
        "capelin:///x",
    )


def test_faults_hit_the_configured_shares_of_machines() -> None:
    faults = Faults(never_boots=10, dies=20, flaps=30)
    hit = [fault_of(name, faults) for name in NAMES]
    expected: dict[Fault | None, int] = {"never boots": 100, "dies": 200, "flaps": 300, None: 400}
    for fault, number in expected.items():
        assert abs(hit.count(fault) - number) < 50
    assert hit == [fault_of(name, faults) for name in NAMES]


@pytest.mark.parametrize(("share", "hit"), [(0, 0), (100, 1000)])
def test_a_share_of_0_hits_no_machine_and_100_hits_all(share: int, hit: int) -> None:
    assert sum(fault_of(name, Faults(dies=share)) == "dies" for name in NAMES) == hit


def test_a_larger_share_adds_machines() -> None:
    few = {name for name in NAMES if fault_of(name, Faults(dies=10))}
    many = {name for name in NAMES if fault_of(name, Faults(dies=30))}
    assert few < many


def test_boot_times_spread_over_the_jitter_and_are_stable() -> None:
    simulated = Simulated(startup_seconds=10, startup_jitter_seconds=20)
    waits = [desired(name, simulated).boots_at - NOW for name in NAMES]
    assert all(timedelta(seconds=10) <= wait < timedelta(seconds=30) for wait in waits)
    assert max(waits) - min(waits) > timedelta(seconds=18)
    assert waits == [desired(name, simulated).boots_at - NOW for name in NAMES]


def test_a_fault_starts_its_delay_after_the_boot() -> None:
    simulated = Simulated(
        startup_seconds=10, startup_jitter_seconds=0, faults=Faults(dies=100, after_seconds=60)
    )
    one = desired(simulated=simulated)
    assert one.fault == "dies"
    assert one.fails_at - NOW == timedelta(seconds=70)


def with_data(name: str, **bootstrap: Any) -> MachinePool:
    template = {"version": "v1.33.13", "bootstrap": {"dataSecretName": name, **bootstrap}}
    return MachinePool.read({"spec": {"template": {"spec": template}}})


def test_another_bootstrap_secret_of_the_users_is_another_revision() -> None:
    before = revision_of(pool(), with_data("first"), {})
    assert revision_of(pool(), with_data("second"), {}) != before


def test_another_secret_of_a_bootstrap_provider_is_the_same_revision() -> None:
    reference = {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": "a"}
    before = revision_of(pool(), with_data("first", configRef=reference), BOOTSTRAP)
    after = revision_of(pool(), with_data("second", configRef=reference), BOOTSTRAP)
    assert after == before
