"""Admission policies confine the provider to objects of control planes."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.api.core import Secret
from capelin.client import ApiError, Client, Config, Forbidden, Impersonation
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.keys.secrets import CREATED_ANNOTATION
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
WRITES = {
    "apiGroups": ["", "apps"],
    "resources": ["deployments", "pods", "secrets"],
    "verbs": ["create", "get", "patch"],
}
USERS = {
    "manager": [FORWARD, STATUS, WRITES],
    "other": [FORWARD, WRITES],
    "core": [STATUS, WRITES],
    "admin": [FORWARD, STATUS, WRITES, EXECUTE],
}


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
        if obj["metadata"]["name"].endswith(("-port-forward", "-workloads", "-secrets")):
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


OWN = {"app.kubernetes.io/managed-by": "capelin-control-plane"}
POD: Unstructured = {
    "automountServiceAccountToken": False,
    "containers": [{"name": "c", "image": "i"}],
}


def pod(labels: dict[str, str], **spec: Any) -> Unstructured:
    metadata = {"generateName": "p-", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**POD, **spec}}


def deployment(labels: dict[str, str], **spec: Any) -> Unstructured:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {**POD, **spec}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"generateName": "d-", "labels": labels},
        "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template},
    }


async def write(user: Client, namespace: str, manifest: Unstructured) -> str:
    """Why a user cannot create an object. Empty if the user can."""
    metadata = {**manifest["metadata"], "namespace": namespace}
    try:
        await user.create({**manifest, "metadata": metadata}, dry_run=True)
    except Forbidden as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", [pod, deployment])
async def test_the_provider_runs_only_its_own_pods_without_a_token(
    namespace: str, users: dict[str, Client], kind: Callable[..., Unstructured]
) -> None:
    foreign = kind(OWN, serviceAccountName="none")
    rejections = (foreign, kind({}), kind(OWN, automountServiceAccountToken=True))
    for manifest in rejections:
        await until(
            lambda manifest=manifest: write(users["manager"], namespace, manifest),
            lambda text: "runs its own pods" in text,
        )
        for user in ("other", "core", "admin"):
            await until(
                lambda user=user, manifest=manifest: write(users[user], namespace, manifest),
                lambda text: not text,
            )


async def test_the_provider_changes_only_secrets_of_control_planes(
    client: Client, namespace: str, users: dict[str, Client]
) -> None:
    owner = {"apiVersion": "v1", "kind": "CapelinControlPlane", "name": "one", "uid": "1"}
    own: dict[str, Unstructured] = {
        "labelled": {"labels": OWN},
        "created": {"annotations": {CREATED_ANNOTATION: ""}},
        "owned": {"ownerReferences": [owner]},
    }
    for name, metadata in {"of-a-user": {}, **own}.items():
        secret = Secret.of(name, namespace, data={"password": b"x"})
        written = {**secret.dump(), "metadata": {**secret.dump()["metadata"], **metadata}}
        await client.create(written, resource=Secret.resource)
    patch = {"data": {"password": "eA=="}, "metadata": {"labels": {"changed": "yes"}}}

    async def change(user: str, name: str) -> str:
        try:
            await users[user].patch(Secret, name, namespace, patch, dry_run=True)
        except Forbidden as error:
            return str(error)
        return ""

    await until(
        lambda: change("manager", "of-a-user"),
        lambda text: "changes Secrets of control planes only" in text,
    )
    for user, name in (*(("manager", name) for name in own), ("core", "of-a-user")):
        await until(lambda user=user, name=name: change(user, name), lambda text: not text)
    token = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/service-account-token",
        "metadata": {
            "name": "token",
            "annotations": {"kubernetes.io/service-account.name": "none"},
        },
    }
    assert "Secrets of control planes only" in await write(users["manager"], namespace, token)
    assert not await write(users["core"], namespace, token)
