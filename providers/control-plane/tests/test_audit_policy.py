"""Audit policies from ConfigMaps, and OpenID Connect settings."""

import json
from dataclasses import replace
from typing import Any

import pytest
from capelin_control_plane.backends.pods.pki_secret import files_of
from capelin_control_plane.desired.component_files import AuditPolicyFile, read_audit_policy
from capelin_control_plane.desired.control_plane import InvalidSpecError

from .factories import components_of, desired_control_plane
from .test_tenant_attacks import desired

POLICY = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n"
ISSUER = "https://accounts.example.com/realms/sea"


def test_api_servers_get_the_parsed_audit_policy() -> None:
    policy = read_audit_policy(POLICY)
    assert json.loads(policy.content) == {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "rules": [{"level": "Metadata"}],
    }
    planned = replace(desired_control_plane("v1.34.4"), audit_policy=policy)
    arguments = components_of(planned).api_server(0).arguments
    assert f"--audit-policy-file=/state/127.64.0.9/pki/{policy.name}" in arguments
    assert "--audit-log-path=-" in arguments
    assert policy.name in files_of("kube-apiserver", planned)
    assert policy.name not in files_of("kube-scheduler", planned)


def test_another_policy_has_another_file_so_that_api_servers_restart() -> None:
    other = POLICY.replace("Metadata", "Request")
    assert read_audit_policy(other).name != read_audit_policy(POLICY).name
    assert read_audit_policy(POLICY + "# why\n") == read_audit_policy(POLICY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "it is not a Policy of audit.k8s.io/v1"),
        ("{", "it is not YAML"),
        ("a: &a 1\nb: *a", "it is not YAML"),
        ("kind: Policy", "it is not a Policy of audit.k8s.io/v1"),
        (POLICY.replace("v1", "v1beta1"), "it is not a Policy of audit.k8s.io/v1"),
        (POLICY.partition("rules")[0], "it has no rules"),
        (POLICY.replace("Metadata", "All"), r"rules\[0\].level is not one of None"),
        (POLICY.replace("level: Metadata", "level"), r"rules\[0\].level is not one of None"),
        (POLICY + "since: 2026-01-01\n", "values that JSON does not have"),
        (POLICY + "since: .nan\n", "values that JSON does not have"),
        (POLICY + "#" * 2**16, "it has more than 64 KiB"),
    ],
)
def test_an_invalid_audit_policy_is_rejected(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_audit_policy(text)


def flags(oidc: dict[str, Any]) -> dict[str, str]:
    spec = {"apiServer": {"oidc": {"issuerURL": ISSUER, "clientID": "capelin", **oidc}}}
    found = components_of(desired(spec)).api_server(0).arguments
    pairs = (flag.removeprefix("--").split("=", 1) for flag in found[1:])
    return {name: value for name, value in pairs if name.startswith("oidc-")}


def test_oidc_settings_become_flags() -> None:
    assert flags({}) == {"oidc-issuer-url": ISSUER, "oidc-client-id": "capelin"}
    more = {"usernameClaim": "email", "groupsClaim": "groups", "groupsPrefix": "sea:"}
    assert flags(more) == flags({}) | {
        "oidc-username-claim": "email",
        "oidc-groups-claim": "groups",
        "oidc-groups-prefix": "sea:",
    }


@pytest.mark.parametrize(
    "issuer",
    [
        "https://127.64.0.9:6443",
        "https://[::1]/",
        "https://localhost",
        "https://169.254.169.254",
        "https://[::ffff:127.0.0.1]",
        "https://[64:ff9b::7f00:1]",
        "https://[fd00:ec2::254]",
        "https://anything.localhost",
        "https://127.1",
        "https://2130706433",
        "https://0x7f000001",
        "https://user:password@example.com",
        "https://example.com?a=b",
        "https://example.com:port",
        "https://",
        "https://bad_name.example.com",
    ],
)
def test_an_invalid_or_local_issuer_is_rejected(issuer: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"^spec\.apiServer\.oidc\.issuerURL"):
        flags({"issuerURL": issuer})


def test_policies_with_different_content_have_different_names() -> None:
    assert AuditPolicyFile(b"a").name.startswith("audit-policy-")
    assert AuditPolicyFile(b"a").name != AuditPolicyFile(b"b").name
