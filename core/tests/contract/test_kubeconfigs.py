"""Kubeconfigs of workload clusters are readable by kubectl, and renewed in time."""

import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from capelin.client import Config, Server, User, new_kubeconfig
from capelin.contract import kubeconfig_reason
from capelin.pki import issue, new_ca
from capelin.programs import run_program
from capelin_embedded.binaries import Binaries

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
CA = new_ca("kubernetes", now=NOW)
ADMIN = {"common_name": "kubernetes-admin", "organizations": ("system:masters",)}
CLIENT = issue(
    CA,
    common_name="kubernetes-admin",
    organizations=("system:masters",),
    usages=("client",),
    now=NOW,
    validity=timedelta(days=100),
)
SERVER = "https://127.64.0.1:6443"
USER = User(certificate=CLIENT.certificate_pem, key=CLIENT.private_key_pem)


def created() -> bytes:
    server = Server(SERVER, ca=CA.certificate_pem)
    return new_kubeconfig(server, USER, cluster="demo", username="demo-admin")


CONFIG = created()


def test_a_kubeconfig_contains_server_ca_and_user() -> None:
    assert yaml.safe_load(CONFIG) == {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "demo-admin@demo",
        "clusters": [
            {
                "name": "demo",
                "cluster": {
                    "server": SERVER,
                    "certificate-authority-data": base64.b64encode(CA.certificate_pem).decode(),
                },
            }
        ],
        "contexts": [
            {"name": "demo-admin@demo", "context": {"cluster": "demo", "user": "demo-admin"}}
        ],
        "users": [
            {
                "name": "demo-admin",
                "user": {
                    "client-certificate-data": base64.b64encode(CLIENT.certificate_pem).decode(),
                    "client-key-data": base64.b64encode(CLIENT.private_key_pem).decode(),
                },
            }
        ],
    }


def test_the_same_input_gives_the_same_bytes() -> None:
    assert created() == CONFIG


@pytest.mark.needs_programs("kubectl")
async def test_kubectl_reads_the_kubeconfig(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(CONFIG)
    view = await run_program(
        *(await Binaries().path("kubectl"), "--kubeconfig", path, "config", "view"),
        *("--minify", "-o", "jsonpath={..server}"),
    )
    assert view.output.decode() == SERVER


def test_a_kubeconfig_survives_a_round_trip() -> None:
    assert Config.from_secret(CONFIG) == Config(Server(SERVER, ca=CA.certificate_pem), USER)


def changed(change: dict[str, Any]) -> bytes:
    return yaml.safe_dump(yaml.safe_load(CONFIG) | change).encode()


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"hello",
        b"- 1",
        b"a: [",
        b"\xff\xfe\x00",
        changed({"current-context": "other"}),
        changed({"current-context": None}),
        changed({"clusters": []}),
        changed({"users": None}),
        changed(
            {
                "clusters": [
                    {
                        "name": "demo",
                        "cluster": {"server": SERVER, "certificate-authority-data": "%"},
                    }
                ]
            }
        ),
        changed({"users": [{"name": "demo-admin", "user": {"client-certificate-data": 5}}]}),
        # Settings that a tenant may have added.
        changed({"users": [{"name": "demo-admin", "user": {"exec": {"command": "/bin/sh"}}}]}),
        CONFIG.replace(b"  user:\n", b"  user:\n    <<: {exec: {command: /bin/sh}}\n"),
        changed({"users": [{"name": "demo-admin", "user": {"client-key": "/etc/key"}}]}),
        changed({"users": [{"name": "demo-admin", "user": {"tokenFile": "/etc/token"}}]}),
    ],
)
def test_unreadable_and_unsafe_kubeconfigs_are_renewed(broken: bytes) -> None:
    assert reason(broken) == "the present one cannot be read"


def test_a_kubeconfig_without_a_ca_or_that_impersonates_is_renewed() -> None:
    clusters = [{"name": "demo", "cluster": {"server": SERVER}}]
    assert reason(changed({"clusters": clusters})) == "it trusts other CAs"
    (user,) = yaml.safe_load(CONFIG)["users"]
    user["user"]["as"] = "admin"
    assert reason(changed({"users": [user]})) == "its user impersonates another"


def reason(data: bytes | None, **changes: Any) -> str | None:
    desired: dict[str, Any] = {
        "server": SERVER,
        "ca_pem": CA.certificate_pem,
        "signer_pem": CA.certificate_pem,
        "now": NOW,
        **ADMIN,
        **changes,
    }
    return kubeconfig_reason(data, **desired)


def test_a_current_kubeconfig_stays() -> None:
    assert reason(CONFIG) is None
    assert reason(CONFIG, now=NOW + timedelta(days=49)) is None


OTHER = new_ca("kubernetes", now=NOW)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"server": "https://127.64.0.2:6443"}, "its server is another"),
        ({"ca_pem": CA.certificate_pem + OTHER.certificate_pem}, "it trusts other CAs"),
        (
            {"signer_pem": OTHER.certificate_pem},
            "with its client certificate, another CA has signed it",
        ),
        ({"organizations": ()}, "with its client certificate, its subject is another"),
        (
            {"now": NOW + timedelta(days=50)},
            "with its client certificate, it is due for renewal",
        ),
    ],
)
def test_changed_kubeconfig_is_renewed(changes: dict[str, Any], expected: str) -> None:
    assert reason(CONFIG, **changes) == expected


def test_a_missing_certificate_or_kubeconfig_is_created() -> None:
    config = changed({"users": [{"name": "demo-admin", "user": {"token": "t"}}]})
    assert reason(None) == "there is none yet"
    assert reason(config) == "it has no client certificate"
