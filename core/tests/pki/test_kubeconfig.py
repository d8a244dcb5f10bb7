"""Kubeconfigs are what kubectl reads, and say when they must be made anew."""

import base64
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from capelin.pki import (
    KubeconfigAccess,
    KubeconfigError,
    issue,
    kubeconfig_reason,
    new_ca,
    new_kubeconfig,
    read_kubeconfig,
)

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
CONFIG = new_kubeconfig(SERVER, CA.certificate_pem, "demo-admin", CLIENT, cluster="demo")


def test_it_says_where_whom_to_trust_and_as_whom() -> None:
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
    again = new_kubeconfig(SERVER, CA.certificate_pem, "demo-admin", CLIENT, cluster="demo")
    assert again == CONFIG


def test_a_namespace_goes_into_the_context() -> None:
    config = new_kubeconfig(SERVER, CA.certificate_pem, "u", CLIENT, namespace="team")
    assert yaml.safe_load(config)["contexts"] == [
        {
            "name": "u@kubernetes",
            "context": {"cluster": "kubernetes", "user": "u", "namespace": "team"},
        }
    ]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(CONFIG)
    seen = subprocess.run(
        [
            "kubectl",
            "--kubeconfig",
            path,
            "config",
            "view",
            "--minify",
            "-o",
            "jsonpath={..server}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout == SERVER


def test_it_reads_back() -> None:
    assert read_kubeconfig(CONFIG) == KubeconfigAccess(
        SERVER, CA.certificate_pem, CLIENT.certificate_pem
    )
    assert read_kubeconfig(CONFIG).client_certificate_pem == CLIENT.certificate_pem


def changed(change: dict[str, Any]) -> bytes:
    return yaml.safe_dump(yaml.safe_load(CONFIG) | change).encode()


def test_a_user_with_a_token_has_no_certificate() -> None:
    config = changed({"users": [{"name": "demo-admin", "user": {"token": "t"}}]})
    assert read_kubeconfig(config).client_certificate_pem is None


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
        changed({"clusters": [{"name": "demo", "cluster": {"server": SERVER}}]}),
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
        # What a tenant may have put beside our certificate.
        changed({"users": [{"name": "demo-admin", "user": {"exec": {"command": "/bin/sh"}}}]}),
        CONFIG.replace(b"  user:\n", b"  user:\n    <<: {exec: {command: /bin/sh}}\n"),
    ],
)
def test_what_is_no_kubeconfig_is_refused_and_made_anew(broken: bytes) -> None:
    with pytest.raises(KubeconfigError, match="is no kubeconfig whose current context has"):
        read_kubeconfig(broken)
    assert reason(broken) == "the present one cannot be read"


def test_an_error_quotes_nothing_of_the_kubeconfig() -> None:
    with pytest.raises(KubeconfigError) as refused:
        read_kubeconfig(b"token: [secret-of-mine")
    assert "secret-of-mine" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def reason(data: bytes | None, **changes: Any) -> str | None:
    wanted: dict[str, Any] = {
        "server": SERVER,
        "ca_pem": CA.certificate_pem,
        "signer_pem": CA.certificate_pem,
        "now": NOW,
        **ADMIN,
        **changes,
    }
    return kubeconfig_reason(data, **wanted)


def test_a_kubeconfig_that_is_as_wanted_stays() -> None:
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
def test_a_kubeconfig_is_made_anew_when_something_else_is_wanted(
    changes: dict[str, Any], expected: str
) -> None:
    assert reason(CONFIG, **changes) == expected


def test_a_kubeconfig_that_is_absent_or_without_certificate_is_made() -> None:
    config = changed({"users": [{"name": "demo-admin", "user": {"token": "t"}}]})
    assert reason(None) == "there is none yet"
    assert reason(config) == "it has no client certificate"
