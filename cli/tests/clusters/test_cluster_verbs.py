"""The verbs of workload clusters: requests, waits and output."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from capelin.api import Condition
from capelin.api.capi import (
    Cluster,
    ClusterClass,
    ContractReference,
    MachinePool,
    StatusVersion,
    Topology,
)
from capelin.api.core import Namespace
from capelin.client import Config, Server, User
from capelin.errors import MissingError, NotReadyError, WaitTimeoutError
from capelin.testing.fake_client import FakeClient, cluster, machine_pool
from capelin.testing.waiting import until
from capelin_cli.clusters import cluster_verbs
from capelin_cli.clusters.cluster_verbs import RunOptions
from capelin_cli.clusters.demo import demo_class
from capelin_cli.clusters.topology import ClusterOptions
from capelin_cli.environments import connection
from capelin_cli.environments.connection import ClusterName
from capelin_cli.verbs.runner import run
from capelin_embedded.management import Environment
from typer import Exit

BEFORE, AFTER = "v1.33.13", "v1.34.4"
DEMO = ClusterName("demo")


class Lab(FakeClient):
    """The API server of an environment, which stays open between verbs."""

    async def close(self) -> None:
        """Stay open."""

    def put(self, *, desired: str, running: str, **metadata: Any) -> Cluster:
        """A Cluster whose topology has one version and whose workers run one."""
        demo = cluster(
            "demo",
            topology=Topology(version=desired),
            control_plane_ref=ContractReference(
                api_group="none.example", kind="CapelinControlPlane", name="demo"
            ),
        )
        for name, value in metadata.items():
            setattr(demo.metadata, name, value)
        demo.status.conditions = [
            Condition(
                type=kind,
                status="True",
                reason=kind,
                observed_generation=1,
                last_transition_time=datetime(2030, 1, 1, tzinfo=UTC),
            )
            for kind in ("TopologyReconciled", "Available")
        ]
        stored = self.add(demo)
        pool = machine_pool("workers", stored, replicas=1, version=desired)
        pool.metadata.labels["cluster.x-k8s.io/cluster-name"] = "demo"
        pool.status.ready_replicas = 1
        pool.status.versions = [StatusVersion(version=running, replicas=1)]
        self.add(pool)
        return stored

    async def finish(self, version: str) -> None:
        """Let the workers run a version."""
        status = {"status": {"versions": [{"version": version, "replicas": 1}]}}
        await self.patch(MachinePool, "workers", "default", status, subresource="status")
        template = {"spec": {"template": {"spec": {"version": version}}}}
        await self.patch(MachinePool, "workers", "default", template)


@pytest.fixture
def fetched() -> list[str]:
    return []


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetched: list[str]) -> Lab:
    client = Lab()

    def environment(name: str) -> Environment:
        return Environment(tmp_path / name)

    def client_of(_: Environment) -> Lab:
        return client

    def is_cached(_: object) -> bool:
        return False

    async def fetch(_: object, version: str) -> None:
        fetched.append(version)

    for module in (cluster_verbs, connection):
        monkeypatch.setattr(module, "find_environment", environment)
    monkeypatch.setattr(connection, "client_of", client_of)
    monkeypatch.setattr(cluster_verbs, "fetch_workload_programs", fetch)
    monkeypatch.setattr(cluster_verbs, "is_cached", is_cached)
    return client


def sent(lab: Lab) -> list[str]:
    return [write for write in lab.writes if "/clusters" in write]


async def test_an_upgrade_without_waiting_fetches_nothing_and_reports_no_end(
    lab: Lab, fetched: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lab.put(desired=BEFORE, running=BEFORE)
    which = ClusterName("demo", "default", "lab")
    await cluster_verbs.upgrade_cluster(which, "1.34", RunOptions())
    expected = (
        f"Cluster API upgrades cluster demo to {AFTER}. Its provider downloads or builds "
        f"Kubernetes {AFTER} first, which can take minutes. "
        "Wait for it with capelin wait cluster demo -e lab."
    )
    assert capsys.readouterr().out.split() == expected.split()
    assert len(sent(lab)) == 1
    # A repeated command sends nothing.
    await cluster_verbs.upgrade_cluster(which, "1.34", RunOptions())
    assert capsys.readouterr().out.split() == expected.split()
    assert len(sent(lab)) == 1
    assert fetched == []


async def test_a_repeated_upgrade_waits_for_the_one_in_progress(lab: Lab) -> None:
    lab.put(desired=AFTER, running=BEFORE)
    again = asyncio.create_task(cluster_verbs.upgrade_cluster(DEMO, "1.34", RunOptions(within=30)))
    waited = asyncio.create_task(
        cluster_verbs.wait_for_cluster(DEMO, RunOptions(within=30), deleted=False)
    )
    await until(lambda: len(lab.requests) > 10)
    assert not again.done()
    assert not waited.done()
    await lab.finish(AFTER)
    await again
    await waited
    assert sent(lab) == []


async def test_current_version_is_accepted(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.put(desired=AFTER, running=AFTER)
    for how in (RunOptions(within=30), RunOptions(), RunOptions(dry_run=True)):
        await cluster_verbs.upgrade_cluster(DEMO, AFTER, how)
        assert capsys.readouterr().out == f"Cluster demo runs {AFTER} already.\n"
    assert sent(lab) == []


async def test_current_version_without_ready(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.put(desired=AFTER, running=AFTER)
    status = {"status": {"readyReplicas": 0}}
    await lab.patch(MachinePool, "workers", "default", status, subresource="status")
    await cluster_verbs.upgrade_cluster(DEMO, AFTER, RunOptions(within=30))
    problem = "It is not ready: MachinePool workers has 0 of 1 machines ready."
    assert capsys.readouterr().out == f"Cluster demo runs {AFTER} already. {problem}\n"


async def test_dry_run_during_an_upgrade(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.put(desired=AFTER, running=BEFORE)
    await cluster_verbs.upgrade_cluster(DEMO, AFTER, RunOptions(dry_run=True))
    assert f"is being upgraded to {AFTER}: MachinePool workers" in capsys.readouterr().out
    assert sent(lab) == []


async def test_an_interruption_reports_the_sent_change(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.put(desired=BEFORE, running=BEFORE)

    async def interrupted(*_: object, **__: object) -> None:
        raise asyncio.CancelledError

    async def interrupt_upgrade(owner: object, function: str) -> str:
        how = RunOptions(within=1)
        with monkeypatch.context() as patched:
            patched.setattr(owner, function, interrupted)
            with pytest.raises(asyncio.CancelledError):
                await cluster_verbs.upgrade_cluster(DEMO, AFTER, how)
        return how.interrupted()

    assert (
        await interrupt_upgrade(cluster_verbs, "fetch_workload_programs") == "Nothing was changed."
    )
    assert "may have reached Cluster API" in await interrupt_upgrade(lab, "patch")
    after = RunOptions(within=0.1)
    with pytest.raises(WaitTimeoutError) as late:
        await cluster_verbs.upgrade_cluster(DEMO, AFTER, after)
    continues = "Cluster API continues: wait for it with capelin wait cluster demo."
    assert after.interrupted() == continues
    assert "capelin wait cluster demo" in late.value.hint


def test_interruption_prints_the_current_state(
    capsys: pytest.CaptureFixture[str],
) -> None:
    how = RunOptions()

    async def work() -> None:
        with how.sending("Cluster API continues."):
            pass
        raise KeyboardInterrupt

    with pytest.raises(Exit):
        run(work(), interrupted=how.interrupted)
    assert capsys.readouterr().err.strip() == "Interrupted. Cluster API continues."


async def test_a_cluster_is_created_before_its_binaries_are_downloaded(
    lab: Lab, fetched: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    lab.add(Namespace.of("team"))
    cluster_class = demo_class()
    cluster_class.metadata.namespace = "team"
    lab.add(cluster_class)
    which = ClusterName("blue", "team", "lab")
    await cluster_verbs.create_cluster(which, ClusterOptions(version="1.34"), RunOptions())
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith(f"Cluster API creates cluster blue with Kubernetes {AFTER}. Its provid")
    assert shown.endswith("Wait for it with capelin wait cluster blue -n team -e lab.")
    assert (await lab.get(Cluster, "blue", "team")).spec.topology is not None
    assert (await lab.get(ClusterClass, "capelin", "team")).name == "capelin"
    assert fetched == []


async def test_a_kubeconfig_takes_the_place_of_an_environment(tmp_path: Path) -> None:
    file = tmp_path / "management.kubeconfig"
    server = Server("https://192.0.2.1:6443")
    file.write_bytes(Config(server, User(token="secret")).flattened())
    which = ClusterName("blue", "team", "lab", file)
    async with which.client() as client:
        assert client.config.server.address == server.address
    assert which.command("backup") == f"capelin backup cluster blue -n team --kubeconfig {file}"
    assert which.folder().is_dir()


async def test_waiting_ends_when_the_cluster_is_deleted(lab: Lab) -> None:
    demo = lab.put(desired=AFTER, running=BEFORE)
    waited = asyncio.create_task(
        cluster_verbs.wait_for_cluster(DEMO, RunOptions(within=30), deleted=False)
    )
    await until(lambda: len(lab.requests) > 5)
    await lab.delete(Cluster, demo.name, demo.namespace)
    with pytest.raises(MissingError, match="Cluster demo was deleted"):
        await waited


async def test_a_cluster_that_is_being_deleted_does_not_become_ready(lab: Lab) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    lab.put(desired=AFTER, running=AFTER, deletion_timestamp=now, finalizers=["a.example/b"])
    with pytest.raises(NotReadyError, match="being deleted"):
        await cluster_verbs.wait_for_cluster(DEMO, RunOptions(within=30), deleted=False)


async def test_waits_for_a_deletion(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    demo = lab.put(desired=AFTER, running=AFTER)
    waited = asyncio.create_task(
        cluster_verbs.wait_for_cluster(DEMO, RunOptions(within=30), deleted=True)
    )
    await until(lambda: len(lab.requests) > 3)
    assert not waited.done()
    await lab.delete(Cluster, demo.name, demo.namespace)
    await waited
    capsys.readouterr()
    await cluster_verbs.wait_for_cluster(DEMO, RunOptions(within=30), deleted=True)
    assert capsys.readouterr().out == "Cluster demo does not exist in namespace default.\n"
    with pytest.raises(MissingError):
        await cluster_verbs.wait_for_cluster(DEMO, RunOptions(within=30), deleted=False)
