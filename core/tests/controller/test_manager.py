"""A manager on a real API server."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import aiohttp
import pytest
from annotated_types import Ge, Le
from capelin.api import BaseObject, Model, Object, ObjectMeta, crd, kind
from capelin.api.core import ConfigMap, CustomResourceDefinition, Event, Secret
from capelin.client import (
    Client,
    Config,
    Forbidden,
    LeadershipLost,
    NotServed,
)
from capelin.contract import reference_to
from capelin.controller import (
    Address,
    Context,
    Done,
    For,
    ListenError,
    Manager,
    ObjectKey,
    Options,
    Owns,
    Reconciler,
    Result,
    Watches,
    lease_rules,
    rbac,
)
from capelin.testing.waiting import until
from prometheus_client import Counter


class Spec(Model):
    size: Annotated[int, Ge(0), Le(1000)] = 1


class Status(Model):
    fish: Annotated[int, Ge(0), Le(1000)] = 0


@kind(group="manager.test", version="v1")
class Shoal(Object[Spec, Status]):
    """A kind that always exists."""


@kind(group="manager.test", version="v1")
class Whale(Object[Spec, Status]):
    """A kind that is installed and deleted during a test."""


@kind(group="manager.test", version="v1")
class Porpoise(Object[Spec, Status]):
    """A kind that is installed late."""


Step = Callable[[Shoal, Context], Awaitable[None]]


class Shoals(Reconciler[Shoal]):
    """Records the reconciled objects and runs the step of the test."""

    watches = (For(Shoal),)

    def __init__(self, step: Step | None = None) -> None:
        self.sizes: list[tuple[str, int]] = []
        self.step = step

    async def reconcile(self, ctx: Context, shoal: Shoal, /) -> Result:
        self.sizes.append((shoal.name, shoal.spec.size))
        if self.step is not None:
            await self.step(shoal, ctx)
        return Done()

    def times(self, name: str) -> int:
        return sum(reconciled == name for reconciled, _ in self.sizes)


@pytest.fixture(scope="module", autouse=True)
def installed(install_crds: Callable[..., None]) -> None:
    install_crds(Shoal)


async def make(
    client: Client, namespace: str, name: str, size: int = 1, labels: dict[str, str] | None = None
) -> Shoal:
    metadata = ObjectMeta(name=name, namespace=namespace, labels=labels or {})
    return await client.create(Shoal(metadata=metadata, spec=Spec(size=size)))


async def resize(client: Client, namespace: str, name: str, size: int) -> None:
    await client.patch(Shoal, name, namespace, {"spec": {"size": size}})


async def test_a_manager_reconciles_existing_new_and_changed_objects(
    client: Client, namespace: str, running: Any
) -> None:
    await make(client, namespace, "old", 1)
    shoals = Shoals()
    async with running(shoals):
        await until(lambda: ("old", 1) in shoals.sizes)
        await make(client, namespace, "new", 2)
        await until(lambda: ("new", 2) in shoals.sizes)
        await resize(client, namespace, "old", 3)
        await until(lambda: ("old", 3) in shoals.sizes)


class CachedShoals(Shoals):
    """Reads from the manager's cache."""

    watches = (For(Shoal), Owns(Secret))
    cached_reads = True


def requests(manager: Manager) -> float:
    """The number of requests of the manager and its watches."""
    return sample(manager, "rest_client_requests_total")


async def reconcile_again(shoals: Shoals, key: ObjectKey) -> None:
    times = shoals.times(key.name)
    shoals.wake(key)
    await until(lambda: shoals.times(key.name) > times)


async def test_quiet_reconcile_costs_no_request(
    client: Client, namespace: str, running: Any
) -> None:
    key = ObjectKey(namespace, "a")
    shoal = await make(client, namespace, "a", 3)
    metadata = ObjectMeta(
        name="key", namespace=namespace, owner_references=[reference_to(shoal, controller=True)]
    )
    await client.create(Secret(metadata=metadata, data={"value": b"1"}))
    values: list[bytes] = []

    async def report(shoal: Shoal, ctx: Context) -> None:
        values.append((await ctx.cached.get(Secret, "key", namespace)).data["value"])
        await ctx.patch_status(shoal, Status(fish=shoal.spec.size))

    shoals = CachedShoals(report)
    async with running(shoals) as manager:
        # The second one is for the event of the status.
        await until(lambda: shoals.times("a") >= 2)
        await reconcile_again(shoals, key)
        before = requests(manager)
        for _ in range(20):
            await reconcile_again(shoals, key)
        assert requests(manager) == before
        await resize(client, namespace, "a", 4)
        await until(lambda: ("a", 4) in shoals.sizes)
        patch = {"data": {"value": "Mg=="}}
        await client.patch(Secret.resource, "key", namespace, patch)
        await until(lambda: b"2" in values)


async def test_cached_reads_include_own_writes(
    client: Client, namespace: str, running: Any
) -> None:
    behind: list[tuple[int, int]] = []
    done = asyncio.Event()

    async def write_and_read(shoal: Shoal, ctx: Context) -> None:
        if done.is_set() or shoal.name != "a":
            return
        for size in range(50):
            await resize(ctx.client, namespace, shoal.name, size)
            read = await ctx.cached.get(Shoal, shoal.name, namespace)
            if read.spec.size != size:
                behind.append((size, read.spec.size))
            await asyncio.sleep(0.005 * (size % 3))
        copy = Shoal.of(f"{shoal.name}-copy", namespace, spec=Spec(size=7))
        for _ in range(20):
            await ctx.client.create(copy)
            assert (await ctx.cached.get(Shoal, copy.name, namespace)).spec.size == 7
            await ctx.client.delete(Shoal, copy.name, namespace)
            assert await ctx.cached.find(Shoal, copy.name, namespace) is None
        done.set()

    await make(client, namespace, "a", 60)
    async with running(CachedShoals(write_and_read)):
        await asyncio.wait_for(done.wait(), 60)
    assert behind == []


async def test_a_manager_ignores_other_namespaces(
    client: Client, namespace: str, running: Any
) -> None:
    await make(client, "default", f"stranger-{namespace}")
    await make(client, namespace, "ours")
    shoals = Shoals()
    async with running(shoals):
        await until(lambda: shoals.times("ours") == 1)
    assert shoals.sizes == [("ours", 1)]


async def test_a_manager_without_a_namespace_watches_all_namespaces(
    client: Client, namespace: str, running: Any
) -> None:
    await make(client, "default", f"everywhere-{namespace}")
    await make(client, namespace, "here")
    shoals = Shoals()
    async with running(shoals, namespace=None):
        await until(lambda: {"here", f"everywhere-{namespace}"} <= {n for n, _ in shoals.sizes})


async def test_watch_filter_selects_objects(client: Client, namespace: str, running: Any) -> None:
    label = "cluster.x-k8s.io/watch-filter"
    for name, value in (("blue", "blue"), ("red", "red")):
        await make(client, namespace, name, labels={label: value})
    await make(client, namespace, "plain")
    shoals = Shoals()
    async with running(shoals, watch_filter="blue") as manager:
        await until(lambda: shoals.times("blue") == 1)
        assert sample(manager, "workqueue_adds_total") == 1, "the API server filters"
        # Simulates a change of an owned object.
        shoals.wake(ObjectKey(namespace, "red"))
        labelled = {"metadata": {"labels": {label: "blue"}}}
        await client.patch(Shoal, "plain", namespace, labelled)
        await until(lambda: shoals.times("plain") == 1)
    assert {name for name, _ in shoals.sizes} == {"blue", "plain"}


async def test_an_unchanged_object_is_reconciled_every_sync_period(
    client: Client, namespace: str, running: Any
) -> None:
    shoals = Shoals()
    await make(client, namespace, "a")
    async with running(shoals, sync_period=1):
        await until(lambda: shoals.times("a") == 3)


async def test_events_are_counted_until_the_manager_stops(
    client: Client, namespace: str, running: Any
) -> None:
    async def record_three_times(shoal: Shoal, ctx: Context) -> None:
        for _ in range(3):
            ctx.event(shoal, "Normal", "Counted", "counted the fish")

    shoals = Shoals(record_three_times)
    await make(client, namespace, "a")
    async with running(shoals):
        await until(lambda: shoals.times("a") == 1)
    (event,) = (await client.list(Event, namespace)).items
    assert event.series is not None
    assert event.series.count == 3


async def test_a_failed_reconcile_is_retried(client: Client, namespace: str, running: Any) -> None:
    async def fail_three_times(shoal: Shoal, _: Context) -> None:
        if shoals.times(shoal.name) <= 3:
            raise RuntimeError("not yet")

    shoals = Shoals(fail_three_times)
    await make(client, namespace, "a")
    async with running(shoals) as manager:
        await until(lambda: sample(manager, "reconcile_total", result="success") == 1)
        assert sample(manager, "reconcile_errors_total") == 3
        assert shoals.times("a") == 4


class Keeper(Shoals):
    """Owns config maps, and watches secrets and other shoals."""

    watches = (
        For(Shoal),
        Owns(ConfigMap, labels={"kept": None}, deletes=True),
        Watches(
            Secret, lambda secret: [ObjectKey(secret.namespace or "", secret.metadata.labels["of"])]
        ),
        Watches(Shoal, lambda shoal: [ObjectKey(shoal.namespace or "", f"size-{shoal.spec.size}")]),
    )


async def owned(client: Client, shoal: Shoal, name: str) -> ConfigMap:
    made = ConfigMap.of(name, shoal.namespace)
    made.metadata.labels = {"kept": "yes"}
    made.metadata.owner_references = [reference_to(shoal, controller=True)]
    return await client.create(made)


async def test_changes_of_owned_and_watched_objects_reconcile(
    client: Client, namespace: str, running: Any
) -> None:
    shoal = await make(client, namespace, "a")
    await make(client, namespace, "size-7")
    shoals = Keeper()
    async with running(shoals):
        await until(lambda: shoals.times("a") == 1)
        await owned(client, shoal, "map")
        await until(lambda: shoals.times("a") == 2)
        await client.delete(ConfigMap, "map", namespace)
        await until(lambda: shoals.times("a") == 3)
        secret = Secret.of("s", namespace, data={"password": b"hunter2"})
        secret.metadata.labels = {"of": "a"}
        await client.create(secret)
        await until(lambda: shoals.times("a") == 4)
        before = shoals.times("size-7")
        await make(client, namespace, "b", 7)
        await until(lambda: shoals.times("size-7") == before + 1)


async def test_all_objects_are_reconciled_if_a_mapper_fails(
    client: Client, namespace: str, running: Any
) -> None:
    shoals = Keeper()
    await make(client, namespace, "a")
    async with running(shoals):
        await until(lambda: shoals.times("a") == 1)
        await client.create(Secret.of("without-label", namespace))
        await until(lambda: shoals.times("a") == 2)


async def test_kopf_receives_only_metadata_of_secrets_and_unread_specs(
    client: Client, namespace: str, running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[dict[str, Any]] = []

    def spy(_: Any, __: Any, body: dict[str, Any], ___: Any) -> list[ObjectKey]:
        bodies.append(body)
        return []

    monkeypatch.setattr("capelin.controller.runner.concerned", spy)
    await client.create(Secret.of("s", namespace, data={"password": b"hunter2"}))
    await make(client, namespace, "a")

    class Holder(Shoals):
        watches = (For(Shoal), Owns(Secret))

    async with running(Holder()):
        await until(lambda: len(bodies) >= 2)
        await client.create(Secret.of("later", namespace, data={"password": b"hunter2"}))
        await make(client, namespace, "b")
        await until(lambda: len(bodies) >= 4)
    assert {key for body in bodies for key in body} == {"apiVersion", "kind", "metadata"}
    assert "aHVudGVyMg==" not in str(bodies)


async def test_logs_contain_no_secret(
    client: Client, namespace: str, running: Any, start: Any
) -> None:
    stream = start("text", 2)

    class Careless(Shoals):
        watches = (
            For(Shoal),
            Owns(Secret),
            Watches(Secret, lambda secret: [ObjectKey(secret.namespace or "", f"shoal-{secret}")]),
        )

    async def be_careless(shoal: Shoal, ctx: Context) -> None:
        secret = await ctx.client.get(Secret, "s", shoal.namespace)
        ctx.log.debug("Found %s", secret)
        ctx.log.debug(f"Found {secret!r}, {secret}")  # noqa: G004 - a common mistake
        ctx.log.debug("Found %s", await ctx.client.get(Secret.resource, "s", shoal.namespace))
        data = {"stringData": {"other": "hunter2 again"}}
        await ctx.client.patch(Secret, "s", shoal.namespace, data)
        if shoals.times(shoal.name) == 1:
            raise RuntimeError(f"no good: {secret}")

    shoals = Careless(be_careless)
    await client.create(Secret.of("s", namespace, data={"password": b"hunter2"}))
    await make(client, namespace, "a")
    async with running(shoals):
        await until(lambda: shoals.times("a") == 2)
    assert f"Found Secret {namespace}/s" in stream.getvalue()
    assert "is invoked" in stream.getvalue(), "the log also contains kopf's own lines"
    assert "hunter2" not in stream.getvalue()
    assert "aHVudGVyMg" not in stream.getvalue()


async def test_declared_permissions_are_sufficient_and_permit_nothing_else(
    client: Client, limited: Any, namespace: str, running: Any, elected: dict[str, Any]
) -> None:
    async def do_everything(shoal: Shoal, ctx: Context) -> None:
        if shoal.metadata.deletion_timestamp is not None:
            await ctx.client.delete(ConfigMap, shoal.name, shoal.namespace)
            await ctx.remove_finalizer(shoal, "manager.test/shoal")
            return
        await ctx.add_finalizer(shoal, "manager.test/shoal")
        kept = ConfigMap.of(shoal.name, shoal.namespace, data={"fish": "1"})
        kept.metadata.labels = {"kept": "yes"}
        kept.metadata.owner_references = [reference_to(shoal, controller=True)]
        await ctx.client.apply(kept)
        await ctx.apply_metadata(shoal, labels={"counted": "yes"})
        ctx.event(shoal, "Normal", "Counted", "counted the fish")
        await ctx.patch_status(shoal, Status(fish=shoal.spec.size))

    shoals = Keeper(do_everything)
    account = await limited([*rbac([shoals]), *lease_rules("capelin-test")])
    async with running(shoals, config=account, **elected) as manager:
        await make(client, namespace, "a")
        await until(lambda: is_counted(client, namespace))
        await client.delete(Shoal, "a", namespace)
        await until(lambda: is_gone(client, namespace))
        assert sample(manager, "reconcile_errors_total") == 0
        async with Client(account) as stranger:
            with pytest.raises(Forbidden):
                await stranger.list(Shoal)


async def is_counted(client: Client, namespace: str) -> bool:
    shoal = await client.get(Shoal, "a", namespace)
    events = await client.list(Event, namespace)
    return (
        shoal.status == Status(fish=1)
        and shoal.metadata.labels == {"counted": "yes"}
        and [event.reason for event in events.items] == ["Counted"]
    )


async def is_gone(client: Client, namespace: str) -> bool:
    return await client.find(Shoal, "a", namespace) is None


async def test_wake_triggers_a_reconcile(client: Client, namespace: str, running: Any) -> None:
    shoals = Shoals()
    shoals.wake(ObjectKey(namespace, "a"))
    await make(client, namespace, "a")
    async with running(shoals):
        await until(lambda: shoals.times("a") == 1)
        shoals.wake(ObjectKey(namespace, "a"))
        await until(lambda: shoals.times("a") == 2)


async def test_an_object_has_no_concurrent_reconciles(
    client: Client, namespace: str, running: Any
) -> None:
    now: list[str] = []
    most: list[int] = []

    async def take_a_while(shoal: Shoal, _: Context) -> None:
        assert shoal.name not in now
        now.append(shoal.name)
        most.append(len(now))
        # Long enough for other reconciles to overlap with this one.
        await asyncio.sleep(0.05)
        now.remove(shoal.name)

    shoals = Shoals(take_a_while)
    names = [f"s{number}" for number in range(6)]
    async with running(shoals, concurrency=3) as manager:
        for name in names:
            await make(client, namespace, name)
        for name in names:
            # Faster than a reconcile.
            for size in range(2, 6):
                await resize(client, namespace, name, size)
        await until(lambda: all((name, 5) in shoals.sizes for name in names))
        assert sample(manager, "reconcile_errors_total") == 0
    assert max(most) == 3


async def test_an_idle_manager_writes_nothing(client: Client, namespace: str, running: Any) -> None:
    async def publish(shoal: Shoal, ctx: Context) -> None:
        await ctx.add_finalizer(shoal, "manager.test/shoal")
        await ctx.patch_status(shoal, Status(fish=shoal.spec.size))

    shoals = Shoals(publish)
    await make(client, namespace, "a")
    async with running(shoals) as manager:
        await until(lambda: shoals.times("a") >= 2)
        await until(lambda: sample(manager, "active_workers") == 0)
        written = sample(manager, "requests_total", method="PATCH")
        version = (await client.get(Shoal, "a", namespace)).metadata.resource_version
        times = shoals.times("a")
        shoals.wake(ObjectKey(namespace, "a"))
        await until(lambda: shoals.times("a") > times)
        await until(lambda: sample(manager, "active_workers") == 0)
        assert sample(manager, "requests_total", method="PATCH") == written == 2
    assert (await client.get(Shoal, "a", namespace)).metadata.resource_version == version


async def test_stop_lets_reconciles_finish(client: Client, namespace: str, running: Any) -> None:
    ended: list[str] = []

    async def slow(shoal: Shoal, _: Context) -> None:
        # Still running when the manager stops.
        await asyncio.sleep(0.3)
        ended.append(shoal.name)

    shoals = Shoals(slow)
    for name in ("a", "b"):
        await make(client, namespace, name)
    async with running(shoals, concurrency=1):
        await until(lambda: len(shoals.sizes) == 1)
    assert ended == [name for name, _ in shoals.sizes]
    assert len(ended) == 1


async def test_stop_cancels_slow_reconciles(
    client: Client, namespace: str, running: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled: list[str] = []

    async def for_ever(shoal: Shoal, _: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(shoal.name)

    shoals = Shoals(for_ever)
    await make(client, namespace, "a")
    async with running(shoals, grace_period=0.05):
        await until(lambda: len(shoals.sizes) == 1)
    assert cancelled == ["a"]
    assert f"shoal: reconcile of {namespace}/a did not end within 0.05 s" in caplog.text


async def test_manager_waits_for_its_kinds(client: Client, config: Config, namespace: str) -> None:
    class Whales(Reconciler[Whale]):
        watches = (For(Whale),)
        reconciled = 0

        async def reconcile(self, __: Context, _: Whale, /) -> Result:
            self.reconciled += 1
            return Done()

    nowhere: dict[str, Any] = {"metrics_address": None, "grace_period": 0}
    options = Options(health_address=Address("127.0.0.1", 0), **nowhere)
    whales = Whales()
    manager = Manager("capelin-whales", [whales], options, config)
    task = asyncio.create_task(manager.run())
    missing = "Waiting for whales in manager.test/v1 to be installed"
    await until(lambda: answers(manager, "/readyz", 503, missing))
    await client.apply(crd(Whale), resource=CustomResourceDefinition.resource)
    await until(lambda: answers(manager, "/readyz", 200, "ok"))
    await client.create(Whale.of("w", namespace, spec=Spec()))
    await until(lambda: whales.reconciled == 1)
    await client.delete(CustomResourceDefinition, "whales.manager.test")
    await until(lambda: is_removed(client, "whales"))
    await client.apply(crd(Whale), resource=CustomResourceDefinition.resource)
    await until(lambda: is_created(client, Whale.of("again", namespace, spec=Spec())))
    await until(lambda: whales.reconciled == 2)
    manager.stop()
    await task


async def is_created(client: Client, obj: BaseObject) -> bool:
    """Whether the API server serves the kind of a new CRD, and has created the object."""
    try:
        await client.create(obj)
    except NotServed:
        return False
    return True


async def answers(manager: Manager, path: str, status: int, text: str) -> bool:
    flag = "--metrics-address" if path == "/metrics" else "--health-address"
    if flag not in manager.probes.bound:
        return False
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{manager.probes.bound[flag]}{path}") as response,
    ):
        return (response.status, text in await response.text()) == (status, True)


async def test_health_and_metrics_pages_show_the_state_of_the_manager(
    client: Client, namespace: str, running: Any
) -> None:
    shoals = Shoals()
    await make(client, namespace, "a")
    somewhere = Address("127.0.0.1", 0)
    async with running(shoals, metrics_address=somewhere, health_address=somewhere) as manager:
        await until(lambda: shoals.times("a") == 1)
        assert await answers(manager, "/healthz", 200, "ok")
        assert await answers(manager, "/readyz", 200, "ok")
        line = 'controller_runtime_reconcile_total{controller="shoal",result="success"} 1.0'
        await until(lambda: answers(manager, "/metrics", 200, line))


async def test_the_error_for_a_taken_address_names_its_flag(config: Config, running: Any) -> None:
    somewhere = Address("127.0.0.1", 0)
    async with running(Shoals(), metrics_address=somewhere) as manager:
        await until(lambda: "--metrics-address" in manager.probes.bound)
        taken = manager.probes.bound["--metrics-address"]
        other = Manager(
            "other", [Shoals()], Options(metrics_address=taken, health_address=None), config
        )
        with pytest.raises(ListenError, match="give another address with --metrics-address"):
            await other.run()


async def test_a_manager_rejects_two_reconcilers_with_one_name(config: Config) -> None:
    with pytest.raises(ValueError, match="two reconcilers have the name shoal"):
        Manager("m", [Shoals(), Shoals()], Options(), config)


@pytest.fixture
async def elected(namespace: str) -> dict[str, Any]:
    return {
        "leader_elect": True,
        "leader_elect_namespace": namespace,
        "leader_elect_retry_period": 0.2,
    }


async def test_only_the_leader_works_and_the_standby_takes_over(
    client: Client, namespace: str, running: Any, elected: dict[str, Any]
) -> None:
    first, second = Shoals(), Shoals()
    await make(client, namespace, "a")
    async with running(first, **elected) as leader:
        await until(lambda: first.times("a") == 1)
        assert sample(leader, "master_status") == 1
        somewhere = Address("127.0.0.1", 0)
        async with running(second, health_address=somewhere, **elected) as other:
            await until(lambda: answers(other, "/readyz", 200, "ok"))
            assert sample(other, "master_status") == 0
            assert not second.sizes
            leader.stop()
            await until(lambda: second.times("a") == 1)
            assert sample(other, "master_status") == 1


async def test_a_lost_lease_cancels_reconciles_at_once(
    client: Client, config: Config, namespace: str, elected: dict[str, Any]
) -> None:
    cancelled: list[str] = []

    async def for_ever(shoal: Shoal, _: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(shoal.name)

    nowhere: dict[str, Any] = {"metrics_address": None, "health_address": None}
    shoals = Shoals(for_ever)
    await make(client, namespace, "a")
    options = Options(namespace=namespace, grace_period=60, **nowhere, **elected)
    task = asyncio.create_task(Manager("capelin-test", [shoals], options, config).run())
    await until(lambda: shoals.times("a") == 1)
    thief = {"spec": {"holderIdentity": "a thief"}}
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/capelin-test"
    await client.request("PATCH", lease, body=thief, content_type="application/merge-patch+json")
    with pytest.raises(LeadershipLost):
        async with asyncio.timeout(60):
            await task
    assert cancelled == ["a"]


def sample(manager: Manager, name: str, **labels: str) -> float:
    """Sum of the samples of all metrics whose name ends with `name`."""
    return sum(
        entry.value
        for metric in manager.metrics.registry.collect()
        for entry in metric.samples
        if entry.name.endswith(name) and labels.items() <= entry.labels.items()
    )


async def test_a_mapper_can_send_requests(client: Client, namespace: str, running: Any) -> None:
    async def all_of_its_size(ctx: Context, secret: Secret) -> list[ObjectKey]:
        size = int(secret.metadata.labels["size"])
        listing = await ctx.client.list(Shoal, secret.namespace)
        return [ObjectKey(namespace, s.name) for s in listing.items if s.spec.size == size]

    class Sized(Shoals):
        watches = (For(Shoal), Watches(Secret, all_of_its_size))

    shoals = Sized()
    for name, size in (("a", 7), ("b", 7), ("c", 8)):
        await make(client, namespace, name, size)
    async with running(shoals):
        await until(lambda: len(shoals.sizes) == 3)
        secret = Secret.of("s", namespace)
        secret.metadata.labels = {"size": "7"}
        await client.create(secret)
        await until(lambda: (shoals.times("a"), shoals.times("b")) == (2, 2))
        assert shoals.times("c") == 1
        await client.create(Secret.of("without-label", namespace))
        await until(lambda: shoals.times("c") == 2)


async def test_an_optional_kind_is_watched_once_it_is_installed(
    client: Client,
    namespace: str,
    running: Any,
    install_crds: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("capelin.controller.manager._OPTIONAL_EVERY", 0.2)

    class Listener(Shoals):
        watches = (
            For(Shoal),
            Watches(Porpoise, lambda obj: [ObjectKey(obj.namespace or "", "a")], optional=True),
        )

    shoals = Listener()
    await make(client, namespace, "a")
    async with running(shoals):
        await until(lambda: shoals.times("a") == 1)
        for number in (1, 2):
            install_crds(Porpoise)
            before = shoals.times("a")
            await client.create(Porpoise.of(f"p{number}", namespace, spec=Spec()))
            await until(lambda before=before: shoals.times("a") > before)
            await client.delete(CustomResourceDefinition, "porpoises.manager.test")
            await until(lambda: is_removed(client, "porpoises"))


async def is_removed(client: Client, plural: str) -> bool:
    return await client.find(CustomResourceDefinition, f"{plural}.manager.test") is None


async def test_lifespan_surrounds_all_reconciles(
    client: Client, namespace: str, running: Any
) -> None:
    steps: list[str] = []

    class Living(Shoals):
        @asynccontextmanager
        async def lifespan(self, ctx: Context, /) -> AsyncGenerator[None]:
            await ctx.client.list(Shoal, namespace)
            steps.append("begin")
            yield
            steps.append("end")

    async def step(shoal: Shoal, _: Context) -> None:
        steps.append(shoal.name)

    await make(client, namespace, "a")
    async with running(Living(step)):
        await until(lambda: len(steps) == 2)
    assert steps == ["begin", "a", "end"]


async def test_a_reconciler_can_add_metrics(client: Client, namespace: str, running: Any) -> None:
    class Counting(Shoals):
        @asynccontextmanager
        async def lifespan(self, ctx: Context, /) -> AsyncGenerator[None]:
            self.fed = Counter("shoals_fed", "Shoals that were fed", registry=ctx.metrics)
            yield

    async def feed(_shoal: Shoal, _ctx: Context) -> None:
        counting.fed.inc()

    counting = Counting(feed)
    await make(client, namespace, "a")
    async with running(counting) as manager:
        await until(lambda: manager.metrics.registry.get_sample_value("shoals_fed_total") == 1)


async def test_patch_status_sends_a_status_that_changed_in_place(
    client: Client, namespace: str, running: Any
) -> None:
    async def count(shoal: Shoal, ctx: Context) -> None:
        status = shoal.status or Status()
        status.fish += 1
        shoal.status = status
        if shoal.spec.size > status.fish:
            assert await ctx.patch_status(shoal) is True
            status = shoal.status
            assert await ctx.patch_status(shoal, status) is False

    async def fish() -> int | None:
        status = (await client.get(Shoal, "a", namespace)).status
        return status.fish if status is not None else None

    await make(client, namespace, "a", 4)
    async with running(Shoals(count)):
        await until(fish, lambda count: count == 3)


async def test_health_reports_background_failures(
    running: Any,
) -> None:
    class Ill(Shoals):
        problem: str | None = None

        def health(self) -> str | None:
            return self.problem

    shoals = Ill()
    async with running(shoals, health_address=Address("127.0.0.1", 0)) as manager:
        await until(lambda: answers(manager, "/healthz", 200, "ok"))
        shoals.problem = "its supervisor has ended"
        assert await answers(manager, "/healthz", 503, "shoal: its supervisor has ended")
        shoals.problem = None
        manager.add_check("disk", lambda: "full")
        assert await answers(manager, "/healthz", 503, "disk: full")
