"""No provider may do what it never does: its rules, compared with the API server's audit log."""

import json
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Final

import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster, MachineDeployment
from capelin.api.core import ClusterRole, Namespace
from capelin.client import Client, Config
from capelin.contract import AGGREGATE_TO_MANAGER_LABEL
from capelin.embedded.apiserver import ApiServer, Settings
from capelin.embedded.binaries import TESTED_KUBERNETES
from capelin.embedded.management import render_template
from capelin.provider import Provider
from capelin.testing.waiting import until
from capelin_control_plane.provider import provider as control_plane
from capelin_infra.waiting import wait_until_ready
from capelin_machine_pool.provider import provider as machine_pool

from .homes import Home
from .repositories import ROOT

pytestmark = pytest.mark.timeout(900)

Use = tuple[str, str, str]
"""An API group, a resource and a verb."""

POLICY: Final = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    userGroups: ["system:serviceaccounts"]
  - level: None
"""


def is_exempt(use: Use) -> bool:
    """What is allowed for a reason that this test cannot bring about."""
    group, resource, verb = use
    return (
        # Asked for by an admission plugin that is off here, when an owner blocks deletion.
        (resource.endswith("/finalizers") and verb == "update")
        # That nothing had to be told about is no fault.
        or resource == "events"
        # The backend `Pods` needs a cluster with nodes.
        or group in {"apps", "policy", "networking.k8s.io", "storage.k8s.io"}
        or (group == "" and resource != "secrets")
        # A pool deletes a machine itself only while core has made no Machine of it.
        or (resource, verb) == ("capelinmachines", "delete")
    )


def allowed(rules: list[Unstructured]) -> Iterator[Use]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield group, resource, verb


def used(log: Path, namespace: str) -> Iterator[Use]:
    """What a provider's service account did, by the audit log."""
    prefix = f"system:serviceaccount:{namespace}:"
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        reference = entry.get("objectRef")
        if reference and entry["user"]["username"].startswith(prefix):
            parts = [reference["resource"], reference.get("subresource")]
            yield reference.get("apiGroup", ""), "/".join(filter(None, parts)), entry["verb"]


@pytest.fixture
async def audited(tmp_path: Path) -> AsyncGenerator[tuple[ApiServer, Path]]:
    """An API server that writes down what service accounts do."""
    policy, log = tmp_path / "policy.yaml", tmp_path / "audit.log"
    policy.write_text(POLICY)
    settings = Settings(arguments={"audit-policy-file": str(policy), "audit-log-path": str(log)})
    server = await ApiServer.prepare(tmp_path / "server", settings)
    await server.start()
    try:
        yield server, log
    finally:
        await server.stop()


@pytest.mark.representative
async def test_every_permission_is_used(audited: tuple[ApiServer, Path], home: Home) -> None:
    server, log = audited
    there = ("--target", "existing", "--kubeconfig", str(server.kubeconfig))
    ended = await home.capelin("up", *there, "--workers", "2")
    assert ended.code == 0, ended.err
    variables = {
        "CLUSTER_NAME": "machines",
        "NAMESPACE": "machines",
        "KUBERNETES_VERSION": TESTED_KUBERNETES[-1],
        "CAPELIN_BACKEND": "Processes",
    }
    text = (ROOT / "clusterctl" / "cluster-template-machines.yaml").read_text()
    async with Client(Config.from_kubeconfig(server.kubeconfig)) as client:
        await client.apply(Namespace.of("machines"))
        for manifest in render_template(text, variables):
            await client.apply(manifest)
        progress: list[str] = []
        await wait_until_ready(client, "machines", "machines", 300, progress.append)
        scaled = await home.capelin("scale", "demo", "--workers", "1")
        assert scaled.code == 0, scaled.err
        await client.patch(
            MachineDeployment, "machines-workers", "machines", {"spec": {"replicas": 0}}
        )
        for name, namespace in (("demo", "default"), ("machines", "machines")):
            await client.delete(Cluster, name, namespace)

        async def gone() -> bool:
            return not (await client.list(Cluster)).items

        await until(gone)
    unused = {
        (provider.label, use)
        for provider in (control_plane(), machine_pool())
        for use in {*allowed([*provider.rules])} - {*used(log, provider.namespace)}
        if not is_exempt(use)
    }
    assert unused == set()


def permission_table() -> str:
    """The rules of the providers on the page about security."""
    lines = ["| provider | API group | resources | verbs |", "|---|---|---|---|"]
    for provider in (control_plane(), machine_pool()):
        for rule in provider.rules:
            groups = ", ".join(f"`{group}`" if group else "core" for group in rule["apiGroups"])
            resources, verbs = (
                ", ".join(f"`{name}`" for name in sorted(rule[field]))
                for field in ("resources", "verbs")
            )
            lines.append(f"| `{provider.label}` | {groups} | {resources} | {verbs} |")
    return "\n".join(lines)


def test_the_page_lists_every_permission_of_the_providers() -> None:
    _, _, rest = (ROOT / "docs" / "security.md").read_text().partition("<!-- permissions -->\n")
    listed, _, _ = rest.partition("\n<!-- end of permissions -->")
    assert listed == permission_table()


@pytest.mark.parametrize("resource", ["secrets", "pods"])
def test_no_provider_may_delete_secrets_or_pods(resource: str) -> None:
    uses = {
        use for provider in (control_plane(), machine_pool()) for use in allowed([*provider.rules])
    }
    assert ("", resource, "delete") not in uses
    assert ("", resource, "deletecollection") not in uses


FOREIGN: Final = Provider(
    name="fish",
    type="InfrastructureProvider",
    version="v1.2.3",
    module="fish",
    manager="fish",
    crds=[{"spec": {"group": "sea.example", "names": {"plural": "fishes"}, "versions": []}}],
)


async def test_core_reads_kinds_of_other_groups_by_the_aggregated_role_alone(
    management: Client,
) -> None:
    """Authorization asks for no kind that is there, so none is made."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": "system:serviceaccount:capi-system:capi-manager",
            "resourceAttributes": {"group": "sea.example", "resource": "fishes", "verb": "list"},
        },
    }

    async def may_list() -> bool:
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return (await management.request("POST", path, body=review))["status"]["allowed"]

    async def may_not_list() -> bool:
        return not await may_list()

    assert not await may_list()
    (role,) = [
        role
        for role in FOREIGN.aggregated_roles
        if AGGREGATE_TO_MANAGER_LABEL in role["metadata"]["labels"]
    ]
    await management.apply(role)
    try:
        await until(may_list)
    finally:
        await management.delete(ClusterRole, role["metadata"]["name"])
    await until(may_not_list)
