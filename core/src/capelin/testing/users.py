"""Clients of other users than the administrator, for tests of permissions and admission."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from capelin.client import Client, Config, Impersonation


async def client_of(
    administrator: Client,
    config: Config,
    user: str,
    rules: Mapping[str, Sequence[Mapping[str, Sequence[str]]]],
) -> Client:
    """A client of a user with these rules in these namespaces. "" is the whole cluster."""
    group = "rbac.authorization.k8s.io"
    for namespace, granted in rules.items():
        scope = "" if namespace else "Cluster"
        where = {"namespace": namespace} if namespace else {}
        metadata = {"name": user, **where}
        role = {"apiGroup": group, "kind": f"{scope}Role", "name": user}
        subject = {"apiGroup": group, "kind": "User", "name": user}
        for manifest in (
            {"kind": f"{scope}Role", "rules": list(granted)},
            {"kind": f"{scope}RoleBinding", "roleRef": role, "subjects": [subject]},
        ):
            await administrator.apply(
                {"apiVersion": f"{group}/v1", "metadata": metadata, **manifest}
            )
    impersonated = replace(config.user, impersonate=Impersonation(user))
    return Client(replace(config, user=impersonated), manager=user)
