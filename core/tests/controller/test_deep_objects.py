"""A manager on a real API server, where a tenant has stored deeply nested objects."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import aiohttp
import pytest
from annotated_types import Ge, Le
from capelin.api import AnyValue, Model, Object, kind
from capelin.api.core import Event
from capelin.client import Client, Config, Credentials
from capelin.controller import Context, Done, For, ObjectKey, Reconciler, Result, Watches
from capelin.testing.waiting import until

LEVELS = '{"a":' * 1100 + "1" + "}" * 1100
DEEP = {"deep": LEVELS, "list": "[" * 1100 + "]" * 1100}
WIDE = json.dumps({f"key-{number}": "x" * 20 for number in range(20_000)})


class Spec(Model):
    """A spec with a free-form field like the variables of a Cluster."""

    size: Annotated[int, Ge(0), Le(1000)] = 1
    value: AnyValue = None


class Status(Model):
    """Nothing."""


@kind(group="deep.test", version="v1")
class Squid(Object[Spec, Status]):
    """The reconciled kind."""


@kind(group="deep.test", version="v1")
class Kelp(Object[Spec, Status]):
    """A kind whose contents a mapper reads."""


class Squids(Reconciler[Squid]):
    """Records the reconciled objects."""

    watches = (
        For(Squid),
        Watches(Kelp, to=lambda kelp: [ObjectKey(kelp.namespace or "", f"near-{kelp.name}")]),
    )

    def __init__(self) -> None:
        self.reconciled: list[tuple[str, int]] = []
        self.missing: list[str] = []

    async def reconcile(self, _: Context, squid: Squid, /) -> Result:
        self.reconciled.append((squid.name, squid.spec.size))
        return Done()

    async def on_missing(self, _: Context, key: ObjectKey, /) -> None:
        self.missing.append(key.name)


@dataclass
class Tenant:
    """Sends JSON that our client would not send."""

    config: Config
    namespace: str

    async def store(self, kind: type[Object[Any, Any]], name: str, value: str) -> None:
        """Create an object, or change the value of one that exists."""
        resource = kind.resource
        text = json.dumps(
            {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"value": "VALUE"},
            }
        )
        proof = await Credentials(self.config).proof()
        url = f"{self.config.server.address}{resource.path(self.namespace, name)}"
        async with (
            aiohttp.ClientSession(headers=proof.headers) as session,
            session.patch(
                f"{url}?fieldManager=tenant&force=true",
                data=text.replace('"VALUE"', value),
                headers={"Content-Type": "application/apply-patch+yaml"},
                ssl=proof.tls or True,
            ) as response,
        ):
            assert response.status < 300, (await response.text())[:500]


@pytest.fixture(scope="module", autouse=True)
def installed(install_crds: Callable[..., None]) -> None:
    install_crds(Squid, Kelp)


@pytest.mark.parametrize("shape", DEEP)
async def test_deep_objects_do_not_stop_reconciles_of_other_objects(
    config: Config,
    client: Client,
    namespace: str,
    running: Any,
    caplog: pytest.LogCaptureFixture,
    shape: str,
) -> None:
    caplog.set_level(logging.WARNING)
    tenant, squids = Tenant(config, namespace), Squids()
    await client.create(Squid.of("before", namespace, spec=Spec()))
    for kind_ in (Squid, Kelp):
        await tenant.store(kind_, "listed", DEEP[shape])
    async with running(squids):
        await until(lambda: ("before", 1) in squids.reconciled)
        for kind_ in (Squid, Kelp):
            await tenant.store(kind_, "watched", DEEP[shape])
            await tenant.store(kind_, "wide", WIDE)
        await client.patch(Squid, "before", namespace, {"spec": {"size": 2}})
        await client.create(Squid.of("after", namespace, spec=Spec()))
        await client.create(Kelp.of("forest", namespace, spec=Spec()))
        await until(lambda: {("before", 2), ("after", 1)} <= set(squids.reconciled))
        await until(lambda: "near-forest" in squids.missing)
        listing = await client.list(Squid, namespace)
        assert {item.name for item in listing.items} == {"before", "after", "wide"}
        assert {item.name for item in listing.unreadable} == {"listed", "watched"}

        async def events() -> set[str]:
            listing = await client.list(Event, namespace)
            return {
                event.regarding.name or ""
                for event in listing.items
                if event.regarding is not None and event.reason == "Unreadable"
            }

        await until(lambda: "near-wide" in squids.missing)
        while await events() != {"listed", "watched"}:
            pass
        # The object is reconciled when it becomes readable.
        await tenant.store(Squid, "watched", "{}")
        await until(lambda: ("watched", 1) in squids.reconciled)
    lines = [record.getMessage() for record in caplog.records if "unread" in record.name]
    assert len([line for line in lines if "Squid" in line and "cannot be read" in line]) >= 2
