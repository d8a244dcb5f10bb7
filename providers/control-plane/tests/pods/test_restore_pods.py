"""Restores on pods: the pods that create data, and the phases on a real API server."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.api.core import Container, Pod
from capelin.client import Client, Config, Conflict
from capelin.provider import Blocked
from capelin.testing.fake_client import FakeClient
from capelin.testing.waiting import until
from capelin_control_plane.backends.pods import PodsBackend, restore_pods
from capelin_control_plane.backends.pods.restore_pods import (
    REQUEST_ANNOTATION,
    Create,
    Delete,
    RestorePods,
    Send,
    Wait,
    next_pod_step,
    restore_files,
    restore_pod,
)
from capelin_control_plane.backends.pods.workloads import data_directory
from capelin_control_plane.backends.restore_member import receive_snapshot
from capelin_control_plane.backup.encryption import BackupError
from capelin_control_plane.backup.restores import RestoreFiles
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import Phase

from tests.support.kills import KilledError

from .pod_objects import NAMES, objects_of, on_pods, settings
from .test_backend import CONFIG_MAPS, NAME, STATEFUL_SETS, Rig, rig

__all__ = ["rig"]

pytestmark = pytest.mark.timeout(60)

REQUEST = "20260131T030000Z@2026-01-31T04:00:00Z"
BUMP = 10**9
IMAGE = "registry.example/capelin-control-plane:v1"
SNAPSHOT = bytes(range(256)) * 8192


async def snapshot() -> AsyncGenerator[bytes]:
    for start in range(0, len(SNAPSHOT), 2**20):
        yield SNAPSHOT[start : start + 2**20]


async def damaged() -> AsyncGenerator[bytes]:
    yield SNAPSHOT
    raise BackupError("it is damaged")


def restoring(members: int = 1, **changes: Any) -> ControlPlane:
    return replace(on_pods(etcd_replicas=members), restore=REQUEST, **changes)


def manifest_of(desired: ControlPlane, *, is_placed: bool = True) -> Unstructured:
    etcd = objects_of(desired).etcd
    return restore_pod(
        desired, NAMES, 0, etcd, image=IMAGE, restored=None, bump=BUMP, is_placed=is_placed
    )


def pod_of(desired: ControlPlane, phase: str = "Pending", **status: Any) -> Pod:
    manifest = manifest_of(desired)
    return Pod.read({**manifest, "status": {"phase": phase, **status}})


def container(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "restore", "image": IMAGE, "state": state}]


def test_the_pod_has_the_volume_and_the_node_of_its_member() -> None:
    manifest = manifest_of(restoring(3))
    (only,) = manifest["spec"]["containers"]
    assert only["image"] == IMAGE
    assert "--name=one-etcd-0" in only["args"]
    assert only["args"][-1].startswith("one-etcd-2=https://one-etcd-2.one-etcd-members.")
    (volume,) = manifest["spec"]["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "data-one-etcd-0"}
    (term,) = manifest["spec"]["affinity"]["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    labels = term["labelSelector"]["matchLabels"]
    assert labels == {"statefulset.kubernetes.io/pod-name": "one-etcd-0"}
    assert manifest["metadata"]["name"] == "one-restore-etcd-0"
    assert manifest["spec"]["securityContext"]["runAsNonRoot"] is True
    assert "affinity" not in manifest_of(restoring(), is_placed=False)["spec"]


@pytest.mark.parametrize(
    ("pod", "step"),
    [
        (None, Create()),
        (pod_of(restoring()), Wait()),
        (pod_of(restoring(), container_statuses=container(running={})), Send()),
        (pod_of(restoring(), "Succeeded"), None),
        (pod_of(restoring(3), "Succeeded"), Delete()),
        (
            pod_of(
                restoring(),
                "Failed",
                container_statuses=container(terminated={"exitCode": 1, "message": "Error: bad"}),
            ),
            Delete("Error: bad"),
        ),
        (
            pod_of(restoring(), container_statuses=container(waiting={"reason": "ErrImagePull"})),
            Wait(f"cannot be started: image {IMAGE} cannot be pulled"),
        ),
    ],
)
def test_the_next_step_follows_from_the_pod(pod: Pod | None, step: object) -> None:
    assert next_pod_step(pod, manifest_of(restoring())) == step


def test_data_is_prepared_when_each_member_has_it() -> None:
    one, three = restoring(), restoring(3)
    done = pod_of(one, "Succeeded")
    assert restore_files(one, NAMES, [done], None) == RestoreFiles(prepared=REQUEST)
    assert restore_files(one, NAMES, [pod_of(one)], None) == RestoreFiles()
    assert restore_files(three, NAMES, [done], None) == RestoreFiles()
    assert restore_files(one, NAMES, [], REQUEST) == RestoreFiles(restored=REQUEST)
    other = replace(one, restore="20260131T030000Z")
    assert restore_files(other, NAMES, [done], None) == RestoreFiles()


def test_each_restore_has_a_data_directory_of_its_own() -> None:
    first, second = data_directory(REQUEST), data_directory("20260131T030000Z")
    assert str(data_directory(None)) == "/var/lib/etcd/data"
    assert len({first, second}) == 2
    assert str(first).startswith("/var/lib/etcd/restored-")


async def test_restored_data_in_memory_is_impossible(rig: Rig) -> None:
    pods = settings(etcdVolume={"medium": "Memory"}, exposure={"type": "ClusterIP"})
    desired = replace(rig.desired, restore=REQUEST, pods=pods)
    await rig.apply(desired)
    with pytest.raises(Blocked, match="data in memory"):
        await rig.backend.prepare_restore(rig.key, desired, snapshot, bump=BUMP)


async def test_a_provider_outside_of_the_cluster_needs_an_image(rig: Rig) -> None:
    desired = replace(rig.desired, restore=REQUEST)
    await rig.apply(desired)
    with pytest.raises(Blocked, match="--restore-image"):
        await rig.backend.prepare_restore(rig.key, desired, snapshot, bump=BUMP)


async def test_a_provider_in_a_pod_finds_its_own_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient()
    file = tmp_path / "namespace"
    await asyncio.to_thread(file.write_text, "capelin-system\n")
    monkeypatch.setattr(restore_pods, "_NAMESPACE_FILE", file)
    monkeypatch.setenv("HOSTNAME", "manager-abcde")
    pod = Pod.of("manager-abcde", "capelin-system")
    pod.spec.containers = [Container(name="manager", image=IMAGE)]
    await client.create(pod)
    assert await RestorePods(client).find_image() == IMAGE
    assert await RestorePods(client, "other:v1").find_image() == "other:v1"


class Kubelet:
    """Runs pods that create data: a real receiver for each, and the states of the pods."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self._rig, self._folder = rig, folder

    async def started(self, name: str) -> None:
        states = [{**container(running={})[0], "imageID": "", "ready": True, "restartCount": 0}]
        status = {"phase": "Running", "containerStatuses": states}
        await self._rig.set_status(f"pods/{name}", status)

    @asynccontextmanager
    async def forwarded(
        self, _: Config, namespace: str, pod: str, port: int
    ) -> AsyncGenerator[int]:
        assert (namespace, port) == (self._rig.namespace, 2382)
        target = self._folder / pod
        listener = socket.create_server(("127.0.0.1", 0))
        receiving = asyncio.create_task(asyncio.to_thread(receive_snapshot, target, listener))
        try:
            yield listener.getsockname()[1]
            await receiving
            assert await asyncio.to_thread(target.read_bytes) == SNAPSHOT
            await self._rig.set_status(f"pods/{pod}", {"phase": "Succeeded"})
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            await asyncio.gather(receiving, return_exceptions=True)

    async def run(self) -> None:
        """Start each new pod."""
        while True:
            for pod in (await self._rig.client.list(Pod, self._rig.namespace)).items:
                if REQUEST_ANNOTATION in pod.metadata.annotations and pod.status.phase == "Pending":
                    await self.started(pod.name)
            await asyncio.sleep(0.05)


@pytest.fixture
async def kubelet(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Kubelet]:
    kubelet = Kubelet(rig, tmp_path)
    monkeypatch.setattr(restore_pods, "forwarded_port", kubelet.forwarded)
    monkeypatch.setattr(restore_pods, "_POLL_SECONDS", 0.05)
    rig.backend = PodsBackend(rig.client, rig.namespace, IMAGE)
    running = asyncio.create_task(kubelet.run())
    yield kubelet
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def phase_of(rig: Rig, desired: ControlPlane) -> Phase | None:
    """Take a step, and return the phase after it."""
    endpoint, _ = await rig.apply(desired)
    return (await rig.backend.observe(rig.key, endpoint, desired)).restore


async def reach(rig: Rig, desired: ControlPlane, phase: Phase | None) -> None:
    async def current() -> Phase | None:
        return await phase_of(rig, desired)

    await until(current, lambda found: found is phase)


async def data_flag(rig: Rig) -> str:
    stateful_set = await rig.client.get(STATEFUL_SETS, NAME, rig.namespace)
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    (flag,) = [flag for flag in container["args"] if flag.startswith("--data-dir=")]
    return flag.removeprefix("--data-dir=")


async def test_one_write_replaces_the_data_of_all_members(rig: Rig, kubelet: Kubelet) -> None:
    del kubelet
    await rig.apply(rig.desired)
    await rig.run_members()
    assert await phase_of(rig, rig.desired) is None
    assert await data_flag(rig) == "/var/lib/etcd/data"

    desired = replace(rig.desired, restore=REQUEST)
    assert await phase_of(rig, desired) is Phase.PREPARING
    await rig.backend.prepare_restore(rig.key, desired, snapshot, bump=BUMP)
    assert f"{NAME}-0" in await rig.members()
    await reach(rig, desired, Phase.REPLACING)
    assert set(await rig.members()) == {f"one-restore-etcd-{index}" for index in range(3)}
    state = await rig.client.get(CONFIG_MAPS, "one-etcd-state", rig.namespace)
    assert "restored" not in state["data"]
    endpoint, observed = await rig.observe(desired)
    newer = {"metadata": {"annotations": {"written-by": "another provider"}}}
    await rig.client.patch(CONFIG_MAPS, "one-etcd-state", rig.namespace, newer)
    with pytest.raises(Conflict):
        # The late write of a former leader.
        await rig.backend.apply(rig.key, endpoint, desired, observed)
    assert await phase_of(rig, desired) is Phase.STARTING
    state = await rig.client.get(CONFIG_MAPS, "one-etcd-state", rig.namespace)
    assert state["data"]["restored"] == REQUEST
    await rig.apply(desired)
    assert await data_flag(rig) == str(data_directory(REQUEST))
    assert await rig.members() == []

    # Without the request, everything stays as it is.
    assert await phase_of(rig, rig.desired) is None
    assert await data_flag(rig) == str(data_directory(REQUEST))

    # A tenant deletes or damages the state. The members must not return to the data from before the
    # restore.
    await rig.client.delete(CONFIG_MAPS, "one-etcd-state", rig.namespace)
    assert await phase_of(rig, rig.desired) is None
    assert await data_flag(rig) == str(data_directory(REQUEST))
    damaged_state = {"data": {"initial-cluster-state": "", "restored": None}}
    await rig.client.patch(CONFIG_MAPS, "one-etcd-state", rig.namespace, damaged_state)
    assert await phase_of(rig, rig.desired) is None
    assert await data_flag(rig) == str(data_directory(REQUEST))


async def test_a_withdrawn_request_leaves_the_old_data_in_use(rig: Rig, kubelet: Kubelet) -> None:
    del kubelet
    await rig.apply(rig.desired)
    await rig.run_members()
    desired = replace(rig.desired, restore=REQUEST)
    await rig.apply(desired)
    await rig.backend.prepare_restore(rig.key, desired, snapshot, bump=BUMP)
    await reach(rig, desired, Phase.REPLACING)
    assert await phase_of(rig, rig.desired) is None
    assert await data_flag(rig) == "/var/lib/etcd/data"
    assert await rig.members() == []


async def test_a_damaged_snapshot_never_stops_a_control_plane(rig: Rig, kubelet: Kubelet) -> None:
    del kubelet
    await rig.apply(rig.desired)
    await rig.run_members()
    desired = replace(rig.desired, restore=REQUEST)
    await rig.apply(desired)
    with pytest.raises(BackupError, match="is damaged"):
        await rig.backend.prepare_restore(rig.key, desired, damaged, bump=BUMP)
    assert await phase_of(rig, desired) is Phase.PREPARING
    assert f"{NAME}-0" in await rig.members()


def dying(client: Client) -> Client:
    """A client of a provider that dies after its first write."""
    mortal = Client(client.config, manager=client.manager)
    send: Callable[..., Any] = getattr(mortal, "_send")  # noqa: B009 - of the library

    async def sent(request: Any) -> Any:
        response = await send(request)
        # A new provider applies all workloads once, which changes nothing.
        is_state = request.method == "PATCH" and "/configmaps/" in request.path
        if is_state or request.method in {"POST", "DELETE"}:
            raise KilledError
        return response

    setattr(mortal, "_send", sent)  # noqa: B010
    return mortal


@pytest.mark.integration
async def test_providers_that_die_after_each_write_complete_a_restore(
    rig: Rig, kubelet: Kubelet
) -> None:
    del kubelet
    await rig.apply(rig.desired)
    await rig.run_members()
    desired, writes, phases = replace(rig.desired, restore=REQUEST), 0, set[Phase | None]()
    while Phase.STARTING not in phases:
        async with dying(rig.client) as client:
            rig.backend = PodsBackend(client, rig.namespace, IMAGE)
            try:
                phase = await phase_of(rig, desired)
                phases.add(phase)
                if phase is Phase.PREPARING:
                    await rig.backend.prepare_restore(rig.key, desired, snapshot, bump=BUMP)
            except KilledError:
                writes += 1
    rig.backend = PodsBackend(rig.client, rig.namespace, IMAGE)
    await rig.apply(desired)
    assert await data_flag(rig) == str(data_directory(REQUEST))
    assert phases == {Phase.PREPARING, Phase.STARTING}
    # Three pods of the restore, four workloads, four budgets, three members, and the last write.
    assert writes >= 15
