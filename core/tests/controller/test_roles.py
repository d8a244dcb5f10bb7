"""Managers that run with exactly the roles of `Provider.components`."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Annotated, Any
from uuid import uuid4

import aiohttp
import pytest
from annotated_types import Ge, Le
from capelin.api import Model, Object, kind
from capelin.api.core import ConfigMap, Secret
from capelin.client import Client, Config, Forbidden, Impersonation
from capelin.contract import reference_to
from capelin.controller import (
    Address,
    Context,
    Done,
    For,
    Manager,
    ObjectKey,
    Options,
    Owns,
    Reconciler,
    Result,
    diagnostics_rules,
    rbac,
)
from capelin.controller.diagnostics import own_certificate
from capelin.provider import Provider
from capelin.testing.waiting import until


class Spec(Model):
    pass


class Status(Model):
    secrets: Annotated[int, Ge(0), Le(100)] = 0


@kind(group="roles.test", version="v1")
class Vault(Object[Spec, Status]):
    """A kind whose controller deletes its ConfigMap but never its Secret."""


class Vaults(Reconciler[Vault]):
    watches = (For(Vault), Owns(Secret), Owns(ConfigMap, deletes=True))

    def __init__(self) -> None:
        self.keys: set[ObjectKey] = set()
        self.errors: list[Exception] = []

    async def reconcile(self, ctx: Context, vault: Vault, /) -> Result:
        self.keys.add(ObjectKey(vault.namespace or "", vault.name))
        try:
            await self._work(ctx, vault)
        except Exception as error:
            self.errors.append(error)
            raise
        return Done()

    async def _work(self, ctx: Context, vault: Vault) -> None:
        await ctx.add_finalizer(vault, "roles.test/vault")
        for owned in (Secret, ConfigMap):
            made = owned.of(vault.name, vault.namespace)
            made.metadata.owner_references = [reference_to(vault, controller=True)]
            await ctx.client.apply(made)
        await ctx.client.delete(ConfigMap, vault.name, vault.namespace)
        ctx.event(vault, "Normal", "Filled", "filled the vault")
        await ctx.patch_status(vault, Status(secrets=1))


@pytest.fixture(scope="module", autouse=True)
def installed(install_crds: Callable[..., None]) -> None:
    install_crds(Vault)


@asynccontextmanager
async def installation(
    client: Client, config: Config, namespace: str | None
) -> AsyncGenerator[Config]:
    """A provider's components on the API server, and the configuration of its service account."""
    name = f"vaults-{uuid4().hex[:6]}"
    provider = Provider(
        name=name, type="AddonProvider", version="v0.1.0", module="vaults", rules=rbac([Vaults])
    )
    for component in provider.components(namespace):
        await client.create(component)
    me = f"system:serviceaccount:{provider.namespace}:{provider.label}"
    yield replace(config, user=replace(config.user, impersonate=Impersonation(me)))
    if namespace is None:
        for kind_ in ("clusterrolebindings", "clusterroles"):
            path = f"/apis/rbac.authorization.k8s.io/v1/{kind_}/{provider.namespace}-manager"
            await client.request("DELETE", path)


@pytest.mark.parametrize("everywhere", [True, False])
async def test_the_roles_of_a_provider_are_sufficient_and_permit_nothing_else(
    client: Client, config: Config, namespace: str, running: Any, everywhere: bool
) -> None:
    scope = None if everywhere else namespace
    async with installation(client, config, scope) as limited:
        vaults = Vaults()
        await client.create(Vault.of("a", namespace, spec=Spec()))
        async with running(vaults, config=limited, namespace=scope):
            await until(
                lambda: client.get(Vault, "a", namespace),
                lambda vault: vault.status == Status(secrets=1),
            )
        assert vaults.errors == []
        async with Client(limited) as provider:
            for forbidden in (
                provider.delete(Secret, "a", namespace),
                provider.delete(Vault, "a", namespace),
                provider.create(Vault.of("b", namespace, spec=Spec())),
            ):
                with pytest.raises(Forbidden):
                    await forbidden
            if everywhere:
                await provider.list(Secret)
            else:
                for kind_ in (Secret, Vault):
                    with pytest.raises(Forbidden):
                        await provider.list(kind_, "default")


async def test_metrics_on_other_than_loopback_addresses_require_a_token(
    client: Client, config: Config, namespace: str
) -> None:
    options = Options(
        namespace=namespace,
        metrics_address=Address("0.0.0.0", 0),  # noqa: S104
        health_address=None,
    )
    allowed, other = f"scraper-{namespace}", f"other-{namespace}"
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    tokens: dict[str, str] = {}
    for name in (allowed, other):
        await client.request("POST", accounts, body={"metadata": {"name": name}})
        created = await client.request("POST", f"{accounts}/{name}/token", body={"spec": {}})
        tokens[name] = created["status"]["token"]
    rbac_path = "/apis/rbac.authorization.k8s.io/v1"
    rules = [
        {"nonResourceURLs": ["/metrics"], "verbs": ["get"]},
        *diagnostics_rules(),
    ]
    role = {"metadata": {"name": allowed}, "rules": rules}
    await client.request("POST", f"{rbac_path}/clusterroles", body=role)
    subject = {"kind": "ServiceAccount", "name": allowed, "namespace": namespace}
    binding = {
        "metadata": {"name": allowed},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": allowed,
        },
        "subjects": [subject],
    }
    await client.request("POST", f"{rbac_path}/clusterrolebindings", body=binding)
    me = f"system:serviceaccount:{namespace}:{allowed}"
    limited = replace(config, user=replace(config.user, impersonate=Impersonation(me)))
    manager = Manager("capelin-vaults", [Vaults()], options, limited)
    async with managed(manager) as address, aiohttp.ClientSession() as session:

        async def scrape(token: str | None) -> int:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            url = f"https://127.0.0.1:{address.port}/metrics"
            async with session.get(url, headers=headers, ssl=False) as response:
                return response.status

        assert await scrape(None) == 401
        # The API server needs a moment until the new role is in effect.
        await until(lambda: scrape("nonsense"), lambda status: status != 503)
        assert await scrape("nonsense") == 401
        assert await scrape(tokens[other]) == 403
        assert await scrape(tokens[allowed]) == 200
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"http://127.0.0.1:{address.port}/metrics")


@asynccontextmanager
async def managed(manager: Manager) -> AsyncGenerator[Address]:
    task = asyncio.create_task(manager.run())
    try:
        yield await until(lambda: manager.probes.bound.get("--metrics-address"))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_diagnostics_listen_on_loopback_by_default() -> None:
    options = Options()
    for address in (options.metrics_address, options.health_address):
        assert address is not None
        assert address.is_loopback
    assert not options.insecure_diagnostics


def test_the_private_key_of_metrics_is_not_written_to_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a key is written to disk")

    monkeypatch.setattr("tempfile.mkdtemp", fail)
    assert own_certificate().verify_mode == ssl.CERT_NONE
