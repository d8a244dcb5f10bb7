"""The secrets of a control plane, on a real API server."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from capelin.api.core import Secret
from capelin.client import Client, Config
from capelin.contract import CLUSTER_NAME_LABEL, SECRET_TYPE, controller_of, is_controlled_by
from capelin.pki import KeyPair, new_ca, validity_of
from capelin.provider import Blocked
from capelin.testing.fake_client import FakeClient
from capelin_control_plane.api import CapelinControlPlane, Spec
from capelin_control_plane.desired.instances import Endpoint
from capelin_control_plane.keys.certificates import Authorities
from capelin_control_plane.keys.secrets import ensure_authorities, ensure_kubeconfig

from tests.support.cached import use_cache

from .factories import desired_control_plane

NEW = "v1.34.4"
NOW = datetime.now(UTC)
ENDPOINT = Endpoint("127.64.0.9", "127.64.0.9", 6443)
PURPOSES = ("ca", "etcd", "proxy", "sa")

pytestmark = pytest.mark.usefixtures("provider_crds")


@pytest.fixture
async def owner(client: Client, namespace: str) -> CapelinControlPlane:
    return await client.create(
        CapelinControlPlane.of("one", namespace, spec=Spec(version="v1.34.4"))
    )


async def keys_of(
    client: Client, owner: CapelinControlPlane, *, may_create: bool = True
) -> Authorities:
    desired = desired_control_plane(NEW, namespace=owner.namespace or "")
    return await ensure_authorities(client, owner, desired, may_create=may_create)


async def secret(client: Client, owner: CapelinControlPlane, purpose: str) -> Secret:
    return await client.get(Secret, f"one-{purpose}", owner.namespace)


def brought(namespace: str, pair: KeyPair, labels: dict[str, str]) -> Secret:
    one = Secret.of(
        "one-ca",
        namespace,
        type="Opaque",
        data={"tls.crt": pair.certificate_pem, "tls.key": pair.private_key_pem},
    )
    one.metadata.labels = labels
    return one


async def test_a_new_control_plane_waits_for_the_secrets_of_its_predecessor() -> None:
    # The garbage collector of a real API server may be faster than the test.
    client = FakeClient(CapelinControlPlane)
    mine = CapelinControlPlane.of("one", "default", spec=Spec(version=NEW))
    owner = await client.create(mine)
    first = await keys_of(client, owner)
    await client.delete(CapelinControlPlane, "one", "default")
    again = await client.create(mine)
    with pytest.raises(Blocked, match="the garbage collector deletes it") as blocked:
        await keys_of(client, again)
    assert blocked.value.reason == "SecretsRemain"
    for purpose in PURPOSES:
        await client.delete(Secret, f"one-{purpose}", "default")
    assert (await keys_of(client, again)).ca != first.ca


async def test_cas_are_created_once(client: Client, owner: CapelinControlPlane) -> None:
    first = await keys_of(client, owner)
    for purpose in PURPOSES:
        one = await secret(client, owner, purpose)
        assert one.type == SECRET_TYPE
        assert one.metadata.labels[CLUSTER_NAME_LABEL] == "one"
        assert is_controlled_by(one, owner)
    assert await keys_of(client, owner) == first


async def test_ca_of_a_user_is_used(client: Client, owner: CapelinControlPlane) -> None:
    pair = new_ca("theirs", now=NOW)
    theirs = await client.create(brought(owner.namespace or "", pair, {CLUSTER_NAME_LABEL: "one"}))
    assert (await keys_of(client, owner)).ca.certificate_pem == pair.certificate_pem
    assert await secret(client, owner, "ca") == theirs


async def test_unlabelled_secret_is_named(client: Client, owner: CapelinControlPlane) -> None:
    await client.create(brought(owner.namespace or "", new_ca("theirs", now=NOW), {}))
    with pytest.raises(Blocked, match="kubectl label --overwrite secret one-ca") as blocked:
        await keys_of(client, owner)
    assert blocked.value.reason == "CertificatesNotUsable"


async def test_lost_ca_is_not_created_again(client: Client, owner: CapelinControlPlane) -> None:
    await keys_of(client, owner)
    for purpose in ("ca", "sa"):
        await client.delete(Secret, f"one-{purpose}", owner.namespace)
    with pytest.raises(Blocked, match="secret one-ca, one-sa") as blocked:
        await keys_of(client, owner, may_create=False)
    assert blocked.value.reason == "CertificatesMissing"
    assert await client.find(Secret, "one-ca", owner.namespace) is None
    assert await client.find(Secret, "one-sa", owner.namespace) is None


async def test_lost_owner_is_restored(client: Client, owner: CapelinControlPlane) -> None:
    await keys_of(client, owner)
    await client.patch(Secret, "one-etcd", owner.namespace, {"metadata": {"ownerReferences": None}})
    await keys_of(client, owner)
    assert is_controlled_by(await secret(client, owner, "etcd"), owner)


async def keep_kubeconfig(
    client: Client,
    owner: CapelinControlPlane,
    keys: Authorities,
    now: datetime,
    endpoint: Endpoint = ENDPOINT,
) -> Secret:
    of = desired_control_plane(NEW, namespace=owner.namespace or "")
    await ensure_kubeconfig(client, owner, of, endpoint=endpoint, authorities=keys, now=now)
    return await secret(client, owner, "kubeconfig")


async def test_renewal_of_the_kubeconfig(client: Client, owner: CapelinControlPlane) -> None:
    keys = await keys_of(client, owner)
    first = await keep_kubeconfig(client, owner, keys, NOW)
    assert first.type == SECRET_TYPE
    assert is_controlled_by(first, owner)
    soon = await keep_kubeconfig(client, owner, keys, NOW + timedelta(days=181))
    assert soon.metadata.resource_version == first.metadata.resource_version
    later = await keep_kubeconfig(client, owner, keys, NOW + timedelta(days=184))
    certificate = Config.from_secret(later.data["value"]).user.certificate
    assert isinstance(certificate, bytes)
    assert validity_of(certificate).not_after > NOW + timedelta(days=500)


@pytest.mark.parametrize(
    ("host", "server"),
    [("127.64.0.9", "https://127.64.0.9:443"), ("fd00::9", "https://[fd00::9]:443")],
)
async def test_the_kubeconfig_contains_the_endpoint_of_either_ip_family(
    client: Client, owner: CapelinControlPlane, host: str, server: str
) -> None:
    keys = await keys_of(client, owner)
    kept = await keep_kubeconfig(client, owner, keys, NOW, Endpoint("127.64.0.9", host, 443))
    assert Config.from_secret(kept.data["value"]).server.address == server


async def test_damaged_kubeconfig_is_repaired(client: Client, owner: CapelinControlPlane) -> None:
    keys = await keys_of(client, owner)
    await keep_kubeconfig(client, owner, keys, NOW)
    await client.delete(Secret, "one-kubeconfig", owner.namespace)
    assert (await keep_kubeconfig(client, owner, keys, NOW)).data["value"]
    gone = {"metadata": {"ownerReferences": None, "labels": {CLUSTER_NAME_LABEL: None}}}
    await client.patch(Secret, "one-kubeconfig", owner.namespace, gone)
    again = await keep_kubeconfig(client, owner, keys, NOW)
    assert is_controlled_by(again, owner)
    assert again.metadata.labels[CLUSTER_NAME_LABEL] == "one"


async def test_a_users_kubeconfig_does_not_change(
    client: Client, owner: CapelinControlPlane
) -> None:
    keys = await keys_of(client, owner)
    theirs = await client.create(
        Secret.of("one-kubeconfig", owner.namespace, type="Opaque", data={"value": b"theirs"})
    )
    assert controller_of(theirs.metadata.owner_references) is None
    assert await keep_kubeconfig(client, owner, keys, NOW) == theirs


@dataclass
class Late:
    """A client whose watch has not delivered the changes of another one."""

    client: FakeClient
    other: FakeClient
    owner: CapelinControlPlane
    keys: Authorities

    @classmethod
    async def create(cls) -> "Late":
        client = FakeClient(CapelinControlPlane)
        owner = await client.create(
            CapelinControlPlane.of("one", "team", spec=Spec(version="v1.34.4"))
        )
        keys = await keys_of(client, owner)
        kubeconfig = await keep_kubeconfig(client, owner, keys, NOW)
        secrets = [await secret(client, owner, purpose) for purpose in PURPOSES]
        use_cache(client, *secrets, kubeconfig)
        for name in (*PURPOSES, "kubeconfig"):
            await client.cached.get(Secret, f"one-{name}", "team")
        return cls(client, FakeClient(server=client.server), owner, keys)


async def test_secrets_that_have_not_changed_cost_no_request() -> None:
    late = await Late.create()
    late.client.requests.clear()
    assert await keys_of(late.client, late.owner, may_create=False) == late.keys
    desired = desired_control_plane(NEW, namespace="team")
    await ensure_kubeconfig(
        late.client, late.owner, desired, endpoint=ENDPOINT, authorities=late.keys, now=NOW
    )
    assert late.client.requests == []


async def test_new_control_plane_does_not_begin_with_a_deleted_ca() -> None:
    late = await Late.create()
    await late.other.delete(Secret, "one-ca", "team")
    keys = await keys_of(late.client, late.owner)
    assert keys.ca != late.keys.ca
    assert (await secret(late.other, late.owner, "ca")).data["tls.crt"] == keys.ca.certificate_pem


async def test_kubeconfig_that_a_user_has_just_replaced_stays() -> None:
    late = await Late.create()
    await late.other.delete(Secret, "one-kubeconfig", "team")
    theirs = await late.other.create(
        Secret.of("one-kubeconfig", "team", type="Opaque", data={"value": b"theirs"})
    )
    later = NOW + timedelta(days=184)
    assert await keep_kubeconfig(late.client, late.owner, late.keys, later) == theirs


async def test_requested_kubeconfig_renewal(client: Client, owner: CapelinControlPlane) -> None:
    keys = await keys_of(client, owner)
    first = await keep_kubeconfig(client, owner, keys, NOW)
    renewing = replace(
        desired_control_plane(NEW, namespace=owner.namespace or ""),
        renew_issued_before=NOW + timedelta(minutes=1),
    )
    now = NOW + timedelta(minutes=2)
    await ensure_kubeconfig(client, owner, renewing, endpoint=ENDPOINT, authorities=keys, now=now)
    renewed = await secret(client, owner, "kubeconfig")
    assert renewed.data != first.data
    await ensure_kubeconfig(client, owner, renewing, endpoint=ENDPOINT, authorities=keys, now=now)
    assert (await secret(client, owner, "kubeconfig")).data == renewed.data


async def test_a_users_own_ca_is_neither_adopted_nor_changed(
    client: Client, owner: CapelinControlPlane
) -> None:
    # With the type of Cluster API's book and without an owner: it belongs to the user.
    own = brought(owner.namespace or "", new_ca("theirs", now=NOW), {CLUSTER_NAME_LABEL: "one"})
    own.type = SECRET_TYPE
    theirs = await client.create(own)
    await keys_of(client, owner)
    assert await secret(client, owner, "ca") == theirs


async def test_typed_kubeconfig_of_a_user(client: Client, owner: CapelinControlPlane) -> None:
    keys = await keys_of(client, owner)
    theirs = await client.create(
        Secret.of("one-kubeconfig", owner.namespace, type=SECRET_TYPE, data={"value": b"theirs"})
    )
    assert await keep_kubeconfig(client, owner, keys, NOW) == theirs
