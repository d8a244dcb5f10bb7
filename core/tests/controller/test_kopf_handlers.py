"""Plain kopf handlers in a manager, on a real API server."""

import io
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import kopf
import pytest
from capelin.api import Int32, Model, Object, crd, kind
from capelin.api.core import ConfigMap, CustomResourceDefinition, Event
from capelin.client import Client
from capelin.controller import (
    Context,
    Done,
    For,
    Manager,
    Permission,
    Reconciler,
    Result,
    rbac,
)
from capelin.testing.waiting import until
from prometheus_client import Counter


class Spec(Model):
    tail: Int32 = 1


@kind(group="kopf.test", version="v1")
class Otter(Object[Spec, Spec]):
    """A kind with kopf handlers."""


@kind(group="kopf.test", version="v1")
class Seal(Object[Spec, Spec]):
    """A kind with a reconciler."""


@kind(group="kopf.test", version="v1")
class Walrus(Object[Spec, Spec]):
    """A kind that is installed late."""


OTTERS = ("kopf.test", "v1", "otters")


class Seals(Reconciler[Seal]):
    watches = (For(Seal),)

    async def reconcile(self, ctx: Context, seal: Seal, /) -> Result:
        await ctx.patch_status(seal, Spec(tail=seal.spec.tail))
        return Done()


@pytest.fixture(scope="module", autouse=True)
def installed(install_crds: Callable[..., None]) -> None:
    install_crds(Otter, Seal)


@pytest.fixture
def registry() -> kopf.OperatorRegistry:
    return kopf.OperatorRegistry()


async def make(client: Client, kind_: type[Any], namespace: str, tail: int = 1) -> Any:
    return await client.create(kind_.of("a", namespace, spec=Spec(tail=tail)))


async def test_kopf_handlers_run_with_reconcilers(
    client: Client,
    limited: Any,
    namespace: str,
    running: Any,
    registry: kopf.OperatorRegistry,
    start: Any,
) -> None:
    """With the declared permissions only, of which `permissions` are those of the handlers."""
    stream: io.StringIO = start("text", 0)
    seen: list[str] = []

    @kopf.on.startup(registry=registry)
    async def begin(memo: Any, **_: Any) -> None:
        memo.made = Counter("made", "Config maps that were made", registry=memo.metrics)

    @kopf.index(*OTTERS, id="tails", registry=registry)
    def tails(name: str, spec: Any, **_: Any) -> Any:
        return {name: spec["tail"]}

    @kopf.on.create(*OTTERS, registry=registry)
    @kopf.on.resume(*OTTERS, registry=registry)
    async def make_map(
        body: Any, memo: Any, name: str, namespace: Any, tails: Any, logger: Any, **_: Any
    ) -> dict[str, Any]:
        (tail,) = tails[name]
        await memo.client.apply(ConfigMap.of(name, namespace, data={"tail": str(tail)}))
        memo.made.inc()
        logger.info("Made a map with a key: eyJhbGciOiJ.eyJzdWIiOiJ.hunter2")
        kopf.info(body, reason="Made", message="made a map")
        return {"tail": tail}

    @kopf.on.update(*OTTERS, field="spec.tail", registry=registry)
    def notice(old: Any, new: Any, **_: Any) -> None:  # in a thread
        seen.append(f"{old} to {new}")

    @kopf.on.delete(*OTTERS, registry=registry)
    async def remove_map(memo: Any, name: str, namespace: Any, **_: Any) -> None:
        await memo.client.delete(ConfigMap, name, namespace)

    @kopf.on.event(*OTTERS, registry=registry)
    async def count(**_: Any) -> None:
        seen.append("event")

    @kopf.timer(*OTTERS, interval=0.1, registry=registry)
    async def tick(**_: Any) -> None:
        seen.append("tick")

    @kopf.daemon(*OTTERS, registry=registry)
    async def live(stopped: Any, **_: Any) -> None:
        seen.append("daemon")
        await stopped.wait()
        seen.append("daemon ends")

    maps = Permission("", ("configmaps",), ("get", "create", "patch", "delete"))
    rules = rbac([Seals()], kopf=registry, permissions=[maps])
    account = await limited(rules)
    async with running(Seals(), config=account, kopf=registry, namespace=namespace) as manager:
        await make(client, Otter, namespace, 3)
        await make(client, Seal, namespace, 2)
        await until(lambda: client.find(ConfigMap, "a", namespace))
        await until(lambda: {"tick", "daemon", "event"} <= set(seen))
        await client.patch(Otter, "a", namespace, {"spec": {"tail": 4}})
        await until(lambda: "3 to 4" in seen)
        await until(lambda: client.list(Event, namespace), has_event)
        seal = await client.get(Seal, "a", namespace)
        otter = await client.get(Otter, "a", namespace)
        assert any("kopf" in name for name in otter.metadata.finalizers)
        assert (seal.metadata.finalizers, seal.metadata.annotations) == ([], {})
        await client.delete(Otter, "a", namespace)
        await until(lambda: client.find(Otter, "a", namespace), lambda found: found is None)
        assert await client.find(ConfigMap, "a", namespace) is None
        assert manager.metrics.registry.get_sample_value("made_total") == 1
    assert "daemon ends" in seen
    assert f"Otter {namespace}/a: Made a map with a key: (hidden)" in stream.getvalue()
    assert "seals" not in stream.getvalue(), "a watch of the manager is not a handler of the user"


async def test_only_the_leader_runs_handlers_and_the_next_one_continues(
    client: Client, namespace: str, running: Any
) -> None:
    seen: list[str] = []

    def handlers(who: str) -> kopf.OperatorRegistry:
        mine = kopf.OperatorRegistry()

        @kopf.on.update(*OTTERS, registry=mine)
        async def notice(spec: Any, **_: Any) -> None:
            seen.append(f"{who} {spec['tail']}")

        return mine

    elected = {
        "leader_elect": True,
        "leader_elect_namespace": namespace,
        "leader_elect_retry_period": 0.2,
    }
    await make(client, Otter, namespace)
    async with AsyncExitStack() as second:
        async with running(kopf=handlers("first"), **elected):
            await until(lambda: client.get(Otter, "a", namespace), is_known)
            await second.enter_async_context(running(kopf=handlers("second"), **elected))
            await client.patch(Otter, "a", namespace, {"spec": {"tail": 2}})
            await until(lambda: seen == ["first 2"])
        await client.patch(Otter, "a", namespace, {"spec": {"tail": 3}})
        await until(lambda: seen == ["first 2", "second 3"])


def has_event(events: Any) -> bool:
    return ("Made", "made a map") in [(event.reason, event.note) for event in events.items]


def state(manager: Manager) -> str:
    """What /readyz shows."""
    return manager.not_ready() or ""


def is_known(otter: Otter) -> bool:
    """Whether kopf has noted the present state."""
    return any("last-handled" in name for name in otter.metadata.annotations)


async def test_kopf_starts_whenever_its_kind_is_installed(
    client: Client, namespace: str, running: Any, registry: kopf.OperatorRegistry
) -> None:
    seen: list[str] = []

    @kopf.on.create(*OTTERS, registry=registry)
    @kopf.on.create("kopf.test", "v1", "walruses", registry=registry)
    async def notice(name: str, **_: Any) -> None:
        seen.append(name)

    definition = CustomResourceDefinition.resource
    async with running(kopf=registry) as manager:
        for name in ("a", "b"):
            await until(lambda: "Waiting for walruses" in state(manager))
            await client.apply(crd(Walrus), resource=definition)
            await until(lambda: state(manager) == "")
            await client.create(Walrus.of(name, namespace, spec=Spec()))
            await until(lambda name=name: name in seen)
            await client.delete(definition, "walruses.kopf.test")


def test_the_permissions_are_those_that_kopf_needs(registry: kopf.OperatorRegistry) -> None:
    async def handle(**_: Any) -> None: ...

    kopf.on.event("v1", "pods", registry=registry)(handle)
    kopf.on.create(*OTTERS, registry=registry)(handle)
    kopf.index("kopf.test/v1", "seals", registry=registry)(handle)
    kopf.daemon("walruses.v1.kopf.test", registry=registry)(handle)
    assert rbac([], kopf=registry) == [
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
        {
            "apiGroups": ["kopf.test"],
            "resources": ["otters", "walruses"],
            "verbs": ["get", "list", "patch", "watch"],
        },
        {
            "apiGroups": ["kopf.test"],
            "resources": ["otters/status", "walruses/status"],
            "verbs": ["patch"],
        },
        {"apiGroups": ["kopf.test"], "resources": ["seals"], "verbs": ["get", "list", "watch"]},
    ]


def any_kind(_: kopf.Resource) -> bool:
    return True


@pytest.mark.parametrize(
    "selector",
    [("pods",), ("kopf.test", "otters"), (kopf.EVERYTHING,), (any_kind,)],
    ids=["only a name", "no version", "everything", "a function"],
)
def test_a_handler_names_its_kind(selector: Any, registry: kopf.OperatorRegistry) -> None:
    @kopf.on.event(*selector, registry=registry)
    async def look(**_: Any) -> None: ...

    with pytest.raises(ValueError, match="look does not name its kind: write the group"):
        rbac([], kopf=registry)


def test_a_manager_refuses_admission_handlers(registry: kopf.OperatorRegistry) -> None:
    @kopf.on.validate(*OTTERS, registry=registry)
    async def check(**_: Any) -> None: ...

    with pytest.raises(ValueError, match="check is an admission handler of kopf, which a manager"):
        rbac([], kopf=registry)
