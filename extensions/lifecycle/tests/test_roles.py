"""Who may write policies: a policy acts as an administrator of workload clusters."""

from collections.abc import AsyncGenerator

import pytest
from capelin.api.core import ClusterRole
from capelin.client import Client
from capelin.testing.waiting import until
from capelin_lifecycle.api.names import GROUP
from capelin_lifecycle.provider import NAMESPACE, roles

pytestmark = [pytest.mark.usefixtures("provider_crds"), pytest.mark.integration]

RBAC = "rbac.authorization.k8s.io"
WRITER = f"{NAMESPACE}-policy-writer"
POLICIES = "lifecyclepolicies"
WRITES = ("create", "update", "patch", "delete", "deletecollection")


@pytest.fixture
async def users(client: Client, namespace: str) -> AsyncGenerator[dict[str, str]]:
    """Users of the namespace, each with one ClusterRole, by the name of the role."""
    cluster_roles = [role for role in roles() if role["kind"] == "ClusterRole"]
    for role in cluster_roles:
        await client.apply(role)
    names = {role: f"{role}-{namespace}" for role in ("view", "edit", "admin", WRITER)}
    for role, user in names.items():
        await client.apply(
            {
                "apiVersion": f"{RBAC}/v1",
                "kind": "RoleBinding",
                "metadata": {"name": user, "namespace": namespace},
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
            }
        )
    yield names
    for role in cluster_roles:
        await client.delete(ClusterRole, role["metadata"]["name"])


async def may(client: Client, user: str, verb: str, plural: str, namespace: str) -> bool:
    attributes = {"group": GROUP, "resource": plural, "verb": verb, "namespace": namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return (await client.request("POST", path, body=review))["status"]["allowed"]


async def test_admin_writes_policies_and_edit_only_reads_them(
    client: Client, namespace: str, users: dict[str, str]
) -> None:
    # The controller manager aggregates roles after they are created.
    for role in ("view", "edit", "admin", WRITER):
        await until(lambda role=role: may(client, users[role], "list", POLICIES, namespace))
    await until(lambda: may(client, users["admin"], "create", POLICIES, namespace))
    for verb in WRITES:
        assert await may(client, users["admin"], verb, POLICIES, namespace)
        assert await may(client, users[WRITER], verb, POLICIES, namespace)
        for role in ("view", "edit"):
            for plural in (POLICIES, "lifecycleresults", "lifecyclereservations"):
                assert not await may(client, users[role], verb, plural, namespace)


async def test_no_role_of_a_namespace_forges_results_or_writes_cluster_wide_policies(
    client: Client, namespace: str, users: dict[str, str]
) -> None:
    await until(lambda: may(client, users["admin"], "create", POLICIES, namespace))
    for user in users.values():
        for verb in WRITES:
            assert not await may(client, user, verb, "clusterlifecyclepolicies", namespace)
            assert not await may(client, user, verb, "lifecyclereservations", namespace)
            if verb != "delete":
                assert not await may(client, user, verb, "lifecycleresults", namespace)
