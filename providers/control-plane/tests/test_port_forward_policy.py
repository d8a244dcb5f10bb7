"""The provider may forward only the ports of etcd members."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from capelin.client import ApiError, Client, Config, Forbidden, Impersonation
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.provider import provider

pytestmark = pytest.mark.usefixtures("provider_crds")

RBAC = "rbac.authorization.k8s.io"
FORWARD = {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["create", "get"]}
EXECUTE = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}
STATUS = {
    "apiGroups": [CapelinControlPlane.resource.group],
    "resources": ["capelincontrolplanes/status"],
    "verbs": ["patch"],
}
USERS = {"manager": [FORWARD, STATUS], "other": [FORWARD], "admin": [FORWARD, STATUS, EXECUTE]}


@pytest.fixture
async def users(
    client: Client, namespace: str, kubeconfig: Path
) -> AsyncGenerator[dict[str, Client]]:
    """Service accounts with the provider's permissions, with fewer and with more."""
    await client.apply(
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "none", "namespace": namespace},
        }
    )
    for name in ("one-etcd-0", "one-api"):
        spec = {
            "automountServiceAccountToken": False,
            "containers": [{"name": "none", "image": "none"}],
            "schedulerName": "none",
            "serviceAccountName": "none",
        }
        metadata = {"name": name, "namespace": namespace}
        await client.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    for obj in provider().objects:
        if obj["metadata"]["name"].endswith("-port-forward"):
            await client.apply(obj)
    config = Config.from_kubeconfig(kubeconfig)
    async with AsyncExitStack() as stack:
        made: dict[str, Client] = {}
        for name, rules in USERS.items():
            role: dict[str, Any] = {"name": name, "namespace": namespace}
            user = f"system:serviceaccount:{namespace}:{name}"
            subject = {"apiGroup": RBAC, "kind": "User", "name": user}
            reference = {"apiGroup": RBAC, "kind": "Role", "name": name}
            for manifest in (
                {"kind": "Role", "rules": rules},
                {"kind": "RoleBinding", "roleRef": reference, "subjects": [subject]},
            ):
                await client.apply({"apiVersion": f"{RBAC}/v1", "metadata": role, **manifest})
            impersonated = replace(config.user, impersonate=Impersonation(user))
            made[name] = await stack.enter_async_context(Client(replace(config, user=impersonated)))
        yield made


async def refusal(user: Client, namespace: str, pod: str) -> str:
    """Why a user cannot forward a port of a pod: the pods of the test run nowhere."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward"
    try:
        await user.request("POST", path, parameters={"ports": "2379"})
    except Forbidden as error:
        return f"forbidden: {error}"
    except ApiError as error:
        return str(error)
    return ""


async def test_the_provider_forwards_only_ports_of_etcd(
    namespace: str, users: dict[str, Client]
) -> None:
    def is_forbidden(text: str) -> bool:
        return "members of etcd only" in text

    # Permissions and the admission policy become effective soon after they are stored.
    await until(lambda: refusal(users["manager"], namespace, "one-api"), is_forbidden)
    for user, pod in (("manager", "one-etcd-0"), ("other", "one-api"), ("admin", "one-api")):
        text = await until(
            lambda user=user, pod=pod: refusal(users[user], namespace, pod),
            lambda text: not text.startswith("forbidden"),
        )
        assert "does not have a host assigned" in text
