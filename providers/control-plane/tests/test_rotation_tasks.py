"""The Secrets of a rotation, its clients, and providers that are killed after each write."""

import base64
import json
import logging
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from capelin.api import BaseObject, kind
from capelin.api.capi import Cluster, Machine, NodeReference
from capelin.api.core import Node, Secret
from capelin.client import Config, Server
from capelin.contract import CLUSTER_NAME_LABEL
from capelin.controller import Context, Recorder
from capelin.pki import issue, new_ca, read_ca, split_pem
from capelin.provider import Blocked
from capelin.testing.fake_client import FakeClient, cluster, machine
from capelin_control_plane.api import CapelinControlPlane, Rotation, Spec
from capelin_control_plane.desired.component_files import EncryptionFiles
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import Endpoint, InstanceStatus, Observed
from capelin_control_plane.keys.certificates import Authorities
from capelin_control_plane.keys.rotation import TOKEN_LIFETIME, NodeFacts, authority_name
from capelin_control_plane.keys.rotation_clients import (
    NODE_ANNOTATION,
    find_clients,
    has_old_token,
    machines_of,
    unjoined,
    with_ages_of_machines,
)
from capelin_control_plane.keys.secrets import AUTHORITIES_ANNOTATION, ensure_authorities
from capelin_control_plane.operations import rotation as rotation_tasks
from capelin_control_plane.operations.engine import in_progress
from capelin_control_plane.operations.rotation import (
    DROP_ANNOTATION,
    ROTATE_ANNOTATION,
    RotationReport,
    Rotations,
    requested_drop,
)
from capelin_control_plane.operations.situation import Situation

from tests.support.kills import KilledError, Life, MortalServer

from .factories import desired_control_plane
from .test_reconciler import FakeBackend
from .test_secrets import ENDPOINT

NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
PURPOSES = ("ca", "etcd", "proxy", "sa")
READY = InstanceStatus(
    name="kube-apiserver-0", component="kube-apiserver", version="v1.34.4", ready=True, current=True
)
SETTLED = Observed(statuses=(READY,), complete=True)


@kind(group="certificates.k8s.io", version="v1", namespaced=False)
class CertificateSigningRequest(BaseObject):
    """A request of a kubelet, and its certificate."""

    spec: dict[str, str] = {}
    status: dict[str, str] = {}


class Reachable(FakeBackend):
    def client_config(self, endpoint: Endpoint) -> Config:
        return Config(Server(endpoint.url))


@dataclass
class Rig:
    """A control plane whose components are always ready, and its workload cluster."""

    life: Life
    client: FakeClient
    workload: FakeClient
    mine: CapelinControlPlane
    recorder: Recorder
    now: datetime = NOW
    observed: Observed = SETTLED
    rotations: Rotations = field(default_factory=lambda: Rotations(lambda _: None))
    encryption: EncryptionFiles = field(default_factory=EncryptionFiles)
    restore: str | None = None
    is_moving: bool = False
    authorities: Authorities | None = None

    @classmethod
    async def create(cls, monkeypatch: pytest.MonkeyPatch) -> "Rig":
        server = MortalServer()
        client, workload = FakeClient(server=server), FakeClient(CertificateSigningRequest)
        mine = CapelinControlPlane.of("one", "default", spec=Spec(version="v1.34.4"))
        mine.metadata.uid = "1234"

        def connect(*_: object, **__: object) -> AbstractAsyncContextManager[FakeClient]:
            return nullcontext(workload)

        monkeypatch.setattr(rotation_tasks, "Client", connect)
        recorder = Recorder(client, "test", "test", now=lambda: NOW)
        rig = cls(server.life, client, workload, mine, recorder)
        await rig.reconcile(is_new=True)
        return rig

    async def reconcile(self, *, is_new: bool = False) -> RotationReport:
        desired = replace(
            desired_control_plane("v1.34.4"),
            now=self.now,
            encryption=self.encryption,
            restore=self.restore,
        )
        keys = await ensure_authorities(self.client, self.mine, desired, may_create=is_new)
        self.authorities = keys
        desired = replace(desired, rotation=keys.progress.step)
        if keys.progress.step:
            self.mine.metadata.annotations[AUTHORITIES_ANNOTATION] = str(keys.progress.step)
        ctx = Context(client=self.client, log=logging.getLogger(), recorder=self.recorder)
        situation = self.situation(desired, keys)
        running = in_progress(desired, self.observed, is_moving=self.is_moving)
        return await self.rotations.reconcile(ctx, situation, running=running)

    def situation(self, desired: ControlPlane, keys: Authorities) -> Situation:
        return Situation(self.mine, desired, self.observed, keys, None, ENDPOINT, Reachable())

    async def reaches(self, reason: str) -> str:
        found: list[str] = []
        for _ in range(10):
            for condition in (await self.reconcile()).conditions:
                if condition.reason == reason:
                    return condition.message
                found.append(condition.reason)
        raise AssertionError(found)

    async def secrets(self) -> dict[str, Secret]:
        get = self.client.get
        return {purpose: await get(Secret, f"one-{purpose}", "default") for purpose in PURPOSES}

    async def trusted(self) -> set[bytes]:
        """All CAs and public keys in the Secrets."""
        found = await self.secrets()
        return {block for it in found.values() for block in split_pem(it.data["tls.crt"])}

    async def reconciles(self, count: int) -> None:
        for _ in range(count):
            await self.reconcile()

    def request(self) -> None:
        self.now += timedelta(minutes=1)
        self.mine.metadata.annotations[ROTATE_ANNOTATION] = self.now.isoformat()

    def drop(self, prefix: str = "") -> None:
        self.mine.metadata.annotations[DROP_ANNOTATION] = prefix + self.now.isoformat()


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return await Rig.create(monkeypatch)


async def test_a_control_plane_without_a_request_does_not_change(rig: Rig) -> None:
    before = await rig.secrets()
    rig.client.requests.clear()
    assert await rig.reconcile() == RotationReport()
    assert await rig.secrets() == before
    assert not rig.client.writes


async def test_a_rotation_reaches_its_end(rig: Rig) -> None:
    before = await rig.secrets()
    rig.request()
    await rig.reaches("TrustingAuthorities")
    await rig.reaches("IssuingCertificates")
    waiting = await rig.reaches("WaitingForClients")
    assert "a confirmation that no copy of a kubeconfig is in use" in waiting
    rig.drop()
    rig.now += TOKEN_LIFETIME + timedelta(minutes=1)
    await rig.reaches("WaitingForClients")
    assert await rig.reconcile() == RotationReport()
    after = await rig.secrets()
    for purpose in PURPOSES:
        assert len(split_pem(after[purpose].data["tls.crt"])) == 1
        assert after[purpose].data["tls.key"] != before[purpose].data["tls.key"]
        assert after[purpose].metadata.labels == before[purpose].metadata.labels
    # The request is fulfilled.
    assert await rig.reconcile() == RotationReport()


@pytest.mark.parametrize("writes", range(13))
async def test_a_killed_provider_leaves_usable_secrets_and_another_one_continues(
    rig: Rig, writes: int
) -> None:
    rig.request()
    rig.drop("force@")
    known = await rig.trusted()
    rig.life.writes = writes
    with pytest.raises(KilledError):
        await rig.reconciles(10)
    rig.life.writes = None
    rig.rotations = Rotations(lambda _: None)
    for _ in range(8):
        for purpose, secret in (await rig.secrets()).items():
            if purpose != "sa":
                read_ca(secret.data["tls.crt"], secret.data["tls.key"], rig.now)
        known |= await rig.trusted()
        await rig.reconcile()
    assert rig.authorities is not None
    assert rig.authorities.progress.step == 4
    assert len(known) == 8, "no CA was created twice"
    for secret in (await rig.secrets()).values():
        assert len(split_pem(secret.data["tls.crt"])) == 1


async def test_an_old_cache_repeats_no_step(rig: Rig) -> None:
    rig.request()
    await rig.reconcile()
    old = {name: secret.model_copy(deep=True) for name, secret in (await rig.secrets()).items()}
    await rig.reconcile()
    assert rig.authorities is not None
    stale = rig.authorities
    taken = await rig.secrets()
    assert taken != old
    ctx = Context(client=rig.client, log=logging.getLogger(), recorder=rig.recorder)
    desired = replace(desired_control_plane("v1.34.4"), now=rig.now)
    await rig.rotations.reconcile(ctx, rig.situation(desired, stale), running=())
    assert await rig.secrets() == taken


@pytest.mark.parametrize(
    ("observed", "obstacle"),
    [
        (Observed(), "a rollout of API servers"),
        (replace(SETTLED, complete=False), "a change of etcd's members"),
        (replace(SETTLED, stopping=frozenset({"etcd-0"})), "every component to be ready"),
        (replace(SETTLED, statuses=(replace(READY, current=False),)), "a rollout of API servers"),
        (
            replace(
                SETTLED, statuses=(READY, replace(READY, name="e", component="etcd", ready=False))
            ),
            "every component to be ready",
        ),
        (replace(SETTLED, blocked=Blocked("X", "x")), "every component to be ready"),
    ],
)
async def test_a_step_waits_for_every_component_and_names_the_obstacle(
    rig: Rig, observed: Observed, obstacle: str
) -> None:
    rig.observed = observed
    rig.request()
    assert obstacle in await rig.reaches("RotationPostponed")
    rig.observed = SETTLED
    await rig.reconcile()
    rig.observed = observed
    before = await rig.secrets()
    assert obstacle in await rig.reaches("TrustingAuthorities")
    assert await rig.secrets() == before


async def test_a_rotation_waits_for_a_restore_and_for_a_change_of_encryption(rig: Rig) -> None:
    rig.request()
    rig.restore = "20260131T030000Z"
    assert "the end of a restore" in await rig.reaches("RotationPostponed")
    rig.restore, rig.encryption = None, EncryptionFiles(changing=True)
    assert "encryption at rest" in await rig.reaches("RotationPostponed")
    rig.encryption = EncryptionFiles()
    await rig.reaches("WaitingForClients")
    rig.drop("force@")
    rig.restore = "20260131T030000Z"
    before = await rig.secrets()
    assert "the end of a restore" in await rig.reaches("WaitingForClients")
    assert await rig.secrets() == before


async def test_a_users_ca_is_not_rotated(rig: Rig) -> None:
    name = "one-ca"
    secret = await rig.client.get(Secret, name, "default")
    await rig.client.delete(Secret, name, "default")
    theirs = Secret.of(name, "default", data={e: secret.data[e] for e in ("tls.crt", "tls.key")})
    theirs.metadata.labels = {CLUSTER_NAME_LABEL: "one"}
    await rig.client.create(theirs)
    before = await rig.secrets()
    rig.request()
    assert "Secret one-ca belongs to a user" in await rig.reaches("RotationRefused")
    assert await rig.secrets() == before


async def test_a_bundle_of_a_user_is_trusted(rig: Rig) -> None:
    mine, other = new_ca("mine", now=NOW), new_ca("other", now=NOW)
    await rig.client.delete(Secret, "one-ca", "default")
    data = {
        "tls.crt": other.certificate_pem + mine.certificate_pem,
        "tls.key": mine.private_key_pem,
    }
    theirs = Secret.of("one-ca", "default", data=data)
    theirs.metadata.labels = {CLUSTER_NAME_LABEL: "one"}
    await rig.client.create(theirs)
    await rig.reconcile()
    assert rig.authorities is not None
    assert rig.authorities.ca == mine
    assert rig.authorities.bundle("ca") == mine.certificate_pem + other.certificate_pem


async def test_an_older_secret_is_rejected(rig: Rig) -> None:
    old = (await rig.secrets())["etcd"]
    rig.request()
    rig.drop("force@")
    for _ in range(5):
        await rig.reconcile()
    data = {entry: base64.b64encode(value).decode() for entry, value in old.data.items()}
    await rig.client.patch(Secret, "one-etcd", "default", {"data": data})
    with pytest.raises(Blocked, match="one-etcd: older than the CAs and keys in use") as blocked:
        await rig.reconcile()
    assert blocked.value.reason == "CertificatesNotUsable"


@pytest.mark.parametrize("damage", [{"private": "hello"}, {"public": "x", "private": "x"}])
async def test_a_damaged_successor_does_not_become_the_ca(rig: Rig, damage: dict[str, str]) -> None:
    rig.request()
    await rig.reconcile()
    secret = (await rig.secrets())["ca"]
    rotation = json.loads(secret.data["rotation"])
    rotation["other"] |= damage
    encoded = base64.b64encode(json.dumps(rotation).encode()).decode()
    await rig.client.patch(Secret, "one-ca", "default", {"data": {"rotation": encoded}})
    with pytest.raises(Blocked, match="Secret one-ca: ") as blocked:
        await rig.reconciles(3)
    assert blocked.value.reason == "CertificatesNotUsable"
    after = (await rig.secrets())["ca"]
    assert after.data["tls.crt"] == secret.data["tls.crt"]
    assert after.data["tls.key"] == secret.data["tls.key"]


@pytest.mark.parametrize("used", ["x", "-1", "9" * 5000])
async def test_an_invalid_record_of_the_step_is_ignored(rig: Rig, used: str) -> None:
    rig.mine.metadata.annotations[AUTHORITIES_ANNOTATION] = used
    assert await rig.reconcile() == RotationReport()


@pytest.mark.parametrize("annotation", [ROTATE_ANNOTATION, DROP_ANNOTATION])
async def test_an_invalid_moment_is_rejected(rig: Rig, annotation: str) -> None:
    rig.request()
    rig.mine.metadata.annotations[annotation] = "tomorrow"
    assert "'tomorrow' is not a moment" in await rig.reaches("RotationRefused")


async def test_a_request_for_later_waits(rig: Rig) -> None:
    rig.request()
    later, rig.now = rig.now, rig.now - timedelta(seconds=30)
    assert await rig.reconcile() == RotationReport(next=later)


async def test_a_schedule_requests_rotations(rig: Rig) -> None:
    rig.mine.spec.certificates.rotation = Rotation(
        schedule="0 3 1 */6 *", time_zone="Europe/Berlin"
    )
    # The CAs are newer than the last moment of the schedule.
    due = datetime(2027, 1, 1, 2, 0, tzinfo=UTC)
    assert await rig.reconcile() == RotationReport(next=due)
    rig.now = due
    assert (await rig.reconcile()).conditions[0].reason == "TrustingAuthorities"


async def test_an_invalid_schedule_is_rejected(rig: Rig) -> None:
    rig.mine.spec.certificates.rotation = Rotation(schedule="yearly")
    (condition,) = (await rig.reconcile()).conditions
    assert condition.reason == "RotationRefused"
    assert "spec.certificates.rotation.schedule" in condition.message


async def test_a_confirmation_of_an_earlier_rotation_does_not_count(rig: Rig) -> None:
    rig.drop("force@")
    rig.request()
    assert "a confirmation" in await rig.reaches("WaitingForClients")
    assert "a confirmation" in await rig.reaches("WaitingForClients")


async def test_a_confirmation_for_later_waits(rig: Rig) -> None:
    rig.request()
    await rig.reaches("WaitingForClients")
    rig.now += timedelta(hours=2)
    rig.drop()
    rig.now -= timedelta(seconds=1)
    message = await rig.reaches("WaitingForClients")
    assert "confirmation" in message
    assert "tokens" not in message


def test_a_drop_can_be_forced() -> None:
    mine = CapelinControlPlane.of("one", "default", spec=Spec(version="v1.34.4"))
    assert requested_drop(mine) == (None, False)
    for prefix, force in (("", False), ("force@", True)):
        mine.metadata.annotations[DROP_ANNOTATION] = prefix + NOW.isoformat()
        assert requested_drop(mine) == (NOW, force)


def request_of(node: str, certificate: bytes) -> CertificateSigningRequest:
    return CertificateSigningRequest.of(
        f"csr-{node}",
        spec={
            "username": f"system:node:{node}",
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        },
        status={"certificate": base64.b64encode(certificate).decode()},
    )


async def test_a_node_keeps_the_evidence_of_its_new_certificate(rig: Rig) -> None:
    rig.request()
    await rig.reaches("WaitingForClients")
    keys = rig.authorities
    assert keys is not None
    workload = rig.workload
    for name in ("new", "old", "silent"):
        await workload.create(Node.of(name))
    other = new_ca("kubernetes", now=NOW)
    for name, ca in (("new", keys.ca), ("old", other)):
        leaf = issue(ca, common_name=f"system:node:{name}", usages=("client",), now=NOW)
        workload.add(request_of(name, leaf.certificate_pem))
    found = await find_clients(workload, keys)
    assert sorted(node.name for node in found.nodes) == ["old", "silent"]
    node = await workload.get(Node, "new")
    assert node.metadata.annotations[NODE_ANNOTATION] == authority_name(keys.ca.certificate_pem)
    await workload.delete(CertificateSigningRequest, "csr-new", None)
    again = await find_clients(workload, keys)
    assert [node.authority is None for node in again.nodes].count(False) == 1


def token(key: str) -> dict[str, str]:
    header = base64.urlsafe_b64encode(json.dumps({"alg": "ES256", "kid": key}).encode())
    return {"token": base64.b64encode(header.rstrip(b"=") + b".e30.x").decode()}


@pytest.mark.parametrize(
    ("data", "old"),
    [
        (token("mine"), False),
        (token("other"), True),
        ({}, False),
        ({"token": "!"}, False),
        ({"token": base64.b64encode(b"hello").decode()}, False),
        ({"token": base64.b64encode(b"W10.e30.x").decode()}, False),
    ],
)
def test_a_token_of_another_key_is_old(data: dict[str, str], old: bool) -> None:
    assert has_old_token(data, "mine") is old


async def test_a_rotation_waits_for_machines_with_old_bootstrap_data() -> None:
    client = FakeClient()
    demo = client.add(cluster("one"))
    assert isinstance(demo, Cluster)
    client.add(machine("joins", demo))
    moment = datetime.now(UTC) + timedelta(minutes=1)
    machines = await machines_of(client, "default", "one")
    assert unjoined(machines, moment) == ["joins"]
    assert unjoined(machines, NOW - timedelta(days=900)) == []
    await client.delete(Machine, "joins", "default")
    assert await machines_of(client, "default", "one") == []


async def test_a_node_that_was_created_again_is_as_old_as_its_machine() -> None:
    client = FakeClient()
    joined = machine("worker", client.add(cluster("one")))
    joined.status.node_ref = NodeReference(name="again")
    client.add(joined)
    machines = await machines_of(client, "default", "one")
    later = datetime.now(UTC) + timedelta(days=1)
    nodes = [NodeFacts("again", later), NodeFacts("of-a-pool", later)]
    again, other = with_ages_of_machines(nodes, machines)
    assert again.created == machines[0].metadata.creation_timestamp
    assert other == nodes[1]


async def test_a_rotation_does_not_begin_while_a_move_is_accepted(rig: Rig) -> None:
    rig.request()
    rig.is_moving = True
    assert "the end of a move" in await rig.reaches("RotationPostponed")
    rig.is_moving = False
    await rig.reaches("TrustingAuthorities")


async def test_a_rotation_begins_although_a_clock_was_ahead(rig: Rig) -> None:
    rig.now += timedelta(days=300)
    rig.request()
    rig.drop("force@")
    await rig.reconciles(6)
    rig.now -= timedelta(days=299)
    assert (await rig.reconcile()).conditions == ()
    rig.request()
    await rig.reaches("TrustingAuthorities")
