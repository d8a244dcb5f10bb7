from datetime import UTC, datetime
from typing import get_args

import pytest
from capelin.api import Unstructured
from capelin.api.capi import MachinePool
from capelin.api.core import Secret
from capelin.contract import (
    SecretPurpose,
    certificate_secret,
    is_controlled_by,
    kubeconfig_secret,
    reference_to,
    secret_name,
    secret_problem,
    service_account_secret,
)
from capelin.pki import ServiceAccountKeys, new_ca, new_service_account_keys

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
CA = new_ca("kubernetes", now=NOW)
OWNER = MachinePool.of("cp", "team")
OWNER.metadata.uid = "cp-uid"


def shape(secret: Secret) -> Unstructured:
    manifest = secret.dump()
    return {**manifest, "data": sorted(manifest["data"])}


def expected(name: str, *keys: str) -> Unstructured:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": "team",
            "labels": {"cluster.x-k8s.io/cluster-name": "demo"},
            "ownerReferences": [
                {
                    "apiVersion": "cluster.x-k8s.io/v1beta2",
                    "kind": "MachinePool",
                    "name": "cp",
                    "uid": "cp-uid",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "type": "cluster.x-k8s.io/secret",
        "data": list(keys),
    }


def test_the_kubeconfig_secret_has_the_form_of_the_contract() -> None:
    secret = kubeconfig_secret(b"config", cluster="demo", owner=OWNER)
    assert shape(secret) == expected("demo-kubeconfig", "value")
    assert secret.data == {"value": b"config"}


@pytest.mark.parametrize("purpose", ["ca", "etcd", "proxy", "apiserver-etcd-client"])
def test_certificate_secrets_have_the_form_of_the_contract(purpose: SecretPurpose) -> None:
    secret = certificate_secret(purpose, CA, cluster="demo", owner=OWNER)
    assert shape(secret) == expected(f"demo-{purpose}", "tls.crt", "tls.key")
    assert secret.data == {"tls.crt": CA.certificate_pem, "tls.key": CA.private_key_pem}


def test_the_service_account_secret_stores_the_public_key_as_tls_crt() -> None:
    keys: ServiceAccountKeys = new_service_account_keys()
    secret = service_account_secret(keys, cluster="demo", owner=OWNER)
    assert shape(secret) == expected("demo-sa", "tls.crt", "tls.key")
    assert secret.data == {"tls.crt": keys.public_key_pem, "tls.key": keys.private_key_pem}


def test_every_purpose_has_its_name() -> None:
    assert [secret_name("demo", purpose) for purpose in get_args(SecretPurpose)] == [
        "demo-kubeconfig",
        "demo-ca",
        "demo-etcd",
        "demo-proxy",
        "demo-sa",
        "demo-apiserver-etcd-client",
        "demo-encryption",
    ]


def test_secrets_of_users_are_not_controlled_by_the_owner() -> None:
    generated = certificate_secret("ca", CA, cluster="demo", owner=OWNER)
    assert is_controlled_by(generated, OWNER)
    user_secret = Secret.of("demo-ca", "team", type="kubernetes.io/tls", data=generated.data)
    assert not is_controlled_by(user_secret, OWNER)
    user_secret.metadata.owner_references = [reference_to(OWNER)]
    assert not is_controlled_by(user_secret, OWNER)
    other = MachinePool.of("other", "team")
    assert not is_controlled_by(generated, other)


def user_secret(*keys: str, label: str | None = "demo") -> Secret:
    secret = Secret.of("demo-x", "team", data=dict.fromkeys(keys, b"x"))
    if label is not None:
        secret.metadata.labels = {"cluster.x-k8s.io/cluster-name": label}
    return secret


@pytest.mark.parametrize(
    ("purpose", "keys"),
    [
        ("kubeconfig", ("value",)),
        ("ca", ("tls.crt", "tls.key")),
        ("sa", ("tls.key",)),
        ("etcd", ("tls.crt", "tls.key", "more")),
    ],
)
def test_complete_secret_has_no_problem(purpose: SecretPurpose, keys: tuple[str, ...]) -> None:
    assert secret_problem(user_secret(*keys), purpose, cluster="demo") is None


@pytest.mark.parametrize("label", [None, "other"])
def test_a_secret_without_the_cluster_label_has_a_hint(label: str | None) -> None:
    assert secret_problem(user_secret("value", label=label), "kubeconfig", cluster="demo") == (
        "Secret demo-x lacks the label cluster.x-k8s.io/cluster-name=demo, and Cluster "
        "API ignores secrets without it. Run kubectl label --overwrite secret demo-x "
        "cluster.x-k8s.io/cluster-name=demo"
    )


@pytest.mark.parametrize(
    ("purpose", "keys", "missing"),
    [
        ("kubeconfig", ("tls.crt",), "value"),
        ("ca", (), "tls.crt and tls.key"),
        ("ca", ("tls.crt",), "tls.key"),
        ("sa", ("tls.crt",), "tls.key"),
    ],
)
def test_an_incomplete_secret_names_the_missing_keys(
    purpose: SecretPurpose, keys: tuple[str, ...], missing: str
) -> None:
    assert secret_problem(user_secret(*keys), purpose, cluster="demo") == (
        f"Secret demo-x has no data under {missing}. "
        "Add it, or delete the secret so that Capelin creates it again"
    )


def test_an_empty_value_is_a_problem() -> None:
    secret = user_secret("value")
    secret.data["value"] = b""
    assert secret_problem(secret, "kubeconfig", cluster="demo") is not None
