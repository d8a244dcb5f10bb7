"""Providers use all their permissions: rules compared with the API server's audit log."""

import json
import re
from collections.abc import AsyncGenerator, Iterator
from itertools import product
from pathlib import Path
from typing import Final

import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster, MachineDeployment
from capelin.api.core import ClusterRole, ConfigMap, Namespace
from capelin.client import Client, Config
from capelin.contract import AGGREGATE_TO_MANAGER_LABEL
from capelin.provider import Provider
from capelin.testing.waiting import until
from capelin_cli.status.readiness import wait_until_ready
from capelin_control_plane.provider import provider as control_plane
from capelin_embedded.apiserver import ApiServer, Settings
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.management import render_template
from capelin_lifecycle.actions.job import JOBS, PODS
from capelin_lifecycle.api import ClusterLifecyclePolicy, LifecyclePolicy
from capelin_lifecycle.provider import OPTIONAL_RESOURCES
from capelin_lifecycle.provider import provider as lifecycle
from capelin_machine_pool.provider import provider as machine_pool
from capelin_release.charts import separate_rules

from .homes import Home
from .lifecycle_stories import PATIENCE, Stories
from .repositories import ROOT

pytestmark = pytest.mark.timeout(900)

PROVIDERS: Final = (control_plane(), machine_pool(), lifecycle())
EXTENSION = PROVIDERS[2].label
PAGE: Final = ROOT / "docs" / "security.md"
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


def allowed(rules: list[Unstructured]) -> Iterator[Use]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield group, resource, verb


def table(name: str) -> list[list[str]]:
    """The cells of a table on the security page, without its header."""
    _, _, rest = PAGE.read_text().partition(f"<!-- {name} -->\n")
    lines, _, _ = rest.partition(f"\n<!-- end of {name} -->")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines.split("\n")[2:]]


def names(cell: str) -> list[str]:
    """The names in a cell. The core group has none."""
    return [""] if cell == "core" else re.findall(r"`([^`]+)`", cell)


def shown_by_tests() -> Iterator[tuple[str, Use, list[str]]]:
    """Permissions whose use this audit log cannot show, and tests that show it."""
    for label, group, resources, verbs, _, tests in table("other uses"):
        providers = [provider.label for provider in PROVIDERS] if label == "all" else names(label)
        for use in product(providers, names(group), names(resources), names(verbs)):
            yield use[0], use[1:], names(tests)


def used(log: Path, namespace: str) -> Iterator[Use]:
    """Requests of a provider's service account in the audit log."""
    prefix = f"system:serviceaccount:{namespace}:"
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        reference = entry.get("objectRef")
        if reference and entry["user"]["username"].startswith(prefix):
            parts = [reference["resource"], reference.get("subresource")]
            yield reference.get("apiGroup", ""), "/".join(filter(None, parts)), entry["verb"]


@pytest.fixture
async def audited(tmp_path: Path) -> AsyncGenerator[tuple[ApiServer, Path]]:
    """An API server with an audit log of service accounts."""
    policy, log = tmp_path / "policy.yaml", tmp_path / "audit.log"
    policy.write_text(POLICY)
    settings = Settings(arguments={"audit-policy-file": str(policy), "audit-log-path": str(log)})
    server = await ApiServer.prepare(tmp_path / "server", settings)
    await server.start()
    try:
        yield server, log
    finally:
        await server.stop()


JOB_POD: Final = {"restartPolicy": "Never", "containers": [{"name": "check", "image": "check"}]}
JOB: Final = {"job": {"target": "Management", "template": {"template": {"spec": JOB_POD}}}}
SOURCES: Final = {"apply": {"sources": [{"configMap": "add-on"}]}}
ADD_ON: Final = (
    "{apiVersion: v1, kind: ConfigMap, metadata: {name: add-on, namespace: kube-system}}"
)
AFTER_INITIALIZATION: Final = "AfterControlPlaneInitialized"


async def apply_policies(client: Client) -> Stories:
    """Policies whose actions need all permissions of the extension."""
    stories = Stories(client, "default")
    add_on = ConfigMap.of("add-on", "default").dump()
    await client.apply({**add_on, "data": {"add-on.yaml": ADD_ON}})
    limits = {"limits": [{"resource": "clusters", "limit": 5}]}
    await stories.apply("quota", "BeforeClusterCreate", {"quota": limits})
    await stories.are_called("BeforeClusterCreate")
    # Makes the extension request a new discovery of its handlers.
    await stories.apply("check", AFTER_INITIALIZATION, JOB)
    await stories.apply("add-on", AFTER_INITIALIZATION, SOURCES)
    await client.apply(
        {
            "apiVersion": ClusterLifecyclePolicy.resource.api_version,
            "kind": ClusterLifecyclePolicy.resource.kind,
            "metadata": {"name": "check-all"},
            "spec": {"hook": AFTER_INITIALIZATION, "action": JOB},
        }
    )
    await stories.are_called(AFTER_INITIALIZATION)
    return stories


async def end_policies(stories: Stories) -> None:
    """Complete the Job of a policy like a controller and a node, and delete policies in use."""
    client = stories.client

    async def are_started() -> bool:
        phases = [await stories.phase(policy, "demo") for policy in ("check", "check-all")]
        return phases == ["Running", "Running"]

    await until(are_started, within=PATIENCE)
    await until(lambda: stories.phase("add-on", "demo"), lambda it: it == "Done", within=PATIENCE)
    jobs = {
        job["metadata"]["name"]: job["metadata"]["labels"]
        for job in (await client.list(JOBS, "default")).items
    }
    name = min(jobs, key=len)
    labels = {"batch.kubernetes.io/job-name": name}
    metadata = {"name": name, "namespace": "default", "labels": labels}
    await client.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": JOB_POD}, resource=PODS
    )
    conditions = [
        {"type": type_, "status": "True", "reason": "BackoffLimitExceeded"}
        for type_ in ("FailureTarget", "Failed")
    ]
    status = {"startTime": "2026-01-01T00:00:00Z", "conditions": conditions}
    await client.patch(JOBS, name, "default", {"status": status}, subresource="status")
    await until(lambda: stories.phase("check", "demo"), lambda it: it == "Failed", within=PATIENCE)
    await client.delete(LifecyclePolicy, "check", "default")
    await client.delete(ClusterLifecyclePolicy, "check-all")

    async def are_gone() -> bool:
        return (
            await client.find(LifecyclePolicy, "check", "default") is None
            and await client.find(ClusterLifecyclePolicy, "check-all") is None
        )

    await until(are_gone, within=PATIENCE)


@pytest.mark.representative
async def test_every_permission_is_used(audited: tuple[ApiServer, Path], home: Home) -> None:
    server, log = audited
    there = ("--target", "existing", "--kubeconfig", str(server.kubeconfig))
    ended = await home.capelin("up", *there, "--management-only", "--with", "lifecycle")
    assert ended.code == 0, ended.err
    async with Client(Config.from_kubeconfig(server.kubeconfig)) as client:
        stories = await apply_policies(client)
        ended = await home.capelin("up", "--workers", "2")
        assert ended.code == 0, ended.err
        await end_policies(stories)
        # The quota admits it with an update of the reservations.
        await stories.create("second")
        await stories.is_admitted("second")
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
        for cluster in (await client.list(Cluster)).items:
            await client.delete(Cluster, cluster.name, cluster.namespace)

        async def gone() -> bool:
            return not (await client.list(Cluster)).items

        await until(gone)
    unused = {
        (provider.label, use)
        for provider in PROVIDERS
        for use in {*allowed([*provider.rules])} - {*used(log, provider.namespace)}
    }
    assert unused - {(label, use) for label, use, _ in shown_by_tests()} == set()


def test_other_uses_refer_to_granted_permissions_and_existing_tests() -> None:
    granted = {
        (provider.label, use) for provider in PROVIDERS for use in allowed([*provider.rules])
    }
    defined = {
        line.split("def ")[1].split("(")[0]
        for folder in ("core", "providers", "extensions", "tests")
        for file in (ROOT / folder).rglob("test_*.py")
        if "site-packages" not in file.parts
        for line in file.read_text().splitlines()
        if line.startswith(("def test_", "async def test_"))
    }
    listed = [*shown_by_tests()]
    assert listed
    for label, use, tests in listed:
        assert (label, use) in granted
        assert tests
        assert all(test in defined or (ROOT / test).is_file() for test in tests)


def permission_table() -> str:
    """The providers' rules on the security page."""
    lines = ["| provider | API group | resources | verbs |", "|---|---|---|---|"]
    for provider in PROVIDERS:
        roles = OPTIONAL_RESOURCES if provider.label == EXTENSION else {}
        needed, separate = separate_rules(provider.rules, roles)
        rows = [(f"`{provider.label}`", rule) for rule in needed]
        for role, rules in separate.items():
            rows += [(f"`{provider.label}`, role `{role}`", rule) for rule in rules]
        lines += [_row(name, rule) for name, rule in rows]
    return "\n".join(lines)


def _row(name: str, rule: Unstructured) -> str:
    groups = ", ".join(f"`{group}`" if group else "core" for group in rule["apiGroups"])
    resources, verbs = (
        ", ".join(f"`{value}`" for value in sorted(rule[field])) for field in ("resources", "verbs")
    )
    if "resourceNames" in rule:
        resources += " named " + ", ".join(f"`{value}`" for value in rule["resourceNames"])
    return f"| {name} | {groups} | {resources} | {verbs} |"


def test_the_page_lists_every_permission_of_the_providers() -> None:
    _, _, rest = PAGE.read_text().partition("<!-- permissions -->\n")
    listed, _, _ = rest.partition("\n<!-- end of permissions -->")
    assert listed == permission_table()


@pytest.mark.parametrize("resource", ["secrets", "pods"])
def test_no_provider_may_delete_secrets_or_pods(resource: str) -> None:
    uses = {use for provider in PROVIDERS for use in allowed([*provider.rules])}
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


async def test_core_needs_the_aggregated_role(
    management: Client,
) -> None:
    """Authorization does not need an existing kind, so the test installs none."""
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
