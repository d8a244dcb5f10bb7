"""A management cluster with an audit log of one user, who may only read."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from capelin.api import Unstructured
from capelin.client import Client, Config, User, new_kubeconfig
from capelin_embedded import apiserver
from capelin_embedded.apiserver import ApiServer
from capelin_embedded.management import Environment, UpRequest, bring_up, remove_environment
from capelin_embedded.processes import kill_all

_NAME, _NAMESPACE = "reader", "default"
_RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True)
class Audited:
    """The management cluster, and the user."""

    environment: Environment
    reader: Path
    """The kubeconfig of the user."""
    log: Path

    def verbs(self) -> dict[str, int]:
        """How many requests the user has sent, by verb."""
        found: dict[str, int] = {}
        for line in self.log.read_text().splitlines():
            verb = json.loads(line)["verb"]
            found[verb] = found.get(verb, 0) + 1
        return found


@asynccontextmanager
async def audited_environment(
    folder: Path, version: str, providers: Sequence[str]
) -> AsyncGenerator[Audited]:
    """A management cluster in a new environment, on an API server with an audit log."""
    policy, log = folder / "policy.json", folder / "audit.log"
    policy.write_text(json.dumps(_audit_policy()))
    flags = {"audit-policy-file": str(policy), "audit-log-path": str(log)}
    settings = apiserver.Settings(version=version, durable=False, arguments=flags)
    server = await ApiServer.prepare(folder / "server", settings)
    environment = Environment(folder / "core")
    try:
        await server.start()
        request = UpRequest(
            target="existing",
            kubeconfig=server.kubeconfig,
            providers=tuple(providers),
            durable=False,
        )
        await bring_up(environment, request)
        config = Config.from_kubeconfig(server.kubeconfig)
        async with Client(config) as client:
            for manifest in _reader():
                await client.apply(manifest)
            token = await client.create_token(_NAME, _NAMESPACE, seconds=24 * 3600)
        reader = folder / "reader.kubeconfig"
        user = User(token=token.value)
        reader.write_bytes(new_kubeconfig(config.server, user, cluster="source", username=_NAME))
        yield Audited(environment, reader, log)
    finally:
        if environment.exists:
            await remove_environment(environment)
        await kill_all(server.processes)


def _audit_policy() -> Unstructured:
    """Only the requests of the user: those of controllers would be many."""
    user = f"system:serviceaccount:{_NAMESPACE}:{_NAME}"
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": [user]}, {"level": "None"}],
    }


def _reader() -> list[Unstructured]:
    """The user, and the permission to read everything."""
    metadata = {"name": _NAME}
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": _NAME, "namespace": _NAMESPACE},
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": metadata,
            "rules": [
                {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
            ],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": _NAME},
            "subjects": [{"kind": "ServiceAccount", "name": _NAME, "namespace": _NAMESPACE}],
        },
    ]
