"""A manager that runs for the duration of a block."""

import asyncio
from pathlib import Path

import pytest
from capelin.api.core import ConfigMap
from capelin.client import Client, Config
from capelin.controller import (
    After,
    Context,
    Done,
    For,
    ListenError,
    Manager,
    Reconciler,
    Result,
)
from capelin.controller.options import Address
from capelin.testing.fake_client import Clock, FakeClient
from capelin.testing.managers import Reconciled, reconcile_once, running
from capelin.testing.waiting import until

SOMEWHERE = Address("127.0.0.1", 0)


class Stamps(Reconciler[ConfigMap]):
    watches = (For(ConfigMap),)

    async def reconcile(self, ctx: Context, obj: ConfigMap, /) -> Result:
        await ctx.apply_metadata(obj, labels={"stamped": "yes"})
        return Done()


class Plain(Reconciler[ConfigMap]):
    """Waits in a thread for a word."""

    watches = (For(ConfigMap),)

    def reconcile(self, ctx: Context, obj: ConfigMap, /) -> Result:
        if "word" not in obj.data:
            ctx.event(obj, "Warning", "NoWord", "it has no word")
            return After(5)
        raise KeyError(obj.data["word"])


async def test_one_reconcile_needs_no_server() -> None:
    client = FakeClient(clock=Clock())
    await client.create(ConfigMap.of("a", "default"))
    reconciled = await reconcile_once(Stamps(), client, "a", "default")
    assert reconciled == Reconciled(Done(), [])
    assert (await client.get(ConfigMap, "a", "default")).metadata.labels == {"stamped": "yes"}


async def test_one_reconcile_in_a_thread_returns_events_and_raises_failures() -> None:
    client = FakeClient(clock=Clock())
    await client.create(ConfigMap.of("a", "default"))
    reconciled = await reconcile_once(Plain(), client, "a", "default")
    assert reconciled.result == After(5)
    assert [(event.reason, event.note) for event in reconciled.events] == [
        ("NoWord", "it has no word")
    ]
    await client.patch(ConfigMap, "a", "default", {"data": {"word": "fish"}})
    with pytest.raises(KeyError, match="fish"):
        await reconcile_once(Plain(), client, "a", "default")


@pytest.fixture
def config(kubeconfig: Path) -> Config:
    return Config.from_kubeconfig(kubeconfig)


async def test_reconcilers_run_in_the_block(config: Config, client: Client, namespace: str) -> None:
    await client.create(ConfigMap.of("a", namespace))
    async with running(Stamps(), config=config, namespace=namespace) as manager:
        await until(
            lambda: client.get(ConfigMap, "a", namespace),
            lambda obj: obj.metadata.labels.get("stamped") == "yes",
        )
        assert manager.probes.bound == {}


async def test_running_passes_name_and_options_to_the_manager(config: Config) -> None:
    async with running(
        Stamps(), config=config, name="stamper", namespace="default", health_address=SOMEWHERE
    ) as manager:
        assert manager.name == "stamper"
        await until(lambda: "--health-address" in manager.probes.bound)


async def test_failing_block_ends_the_manager(config: Config, namespace: str) -> None:
    before = asyncio.all_tasks()

    async def fail() -> None:
        async with running(Stamps(), config=config, namespace=namespace):
            assert asyncio.all_tasks() > before
            raise KeyError("a fish")

    with pytest.raises(KeyError, match="a fish"):
        await fail()
    assert asyncio.all_tasks() <= before


async def test_a_block_may_stop_its_manager_and_continue(config: Config, namespace: str) -> None:
    before = asyncio.all_tasks()
    async with running(Stamps(), config=config, namespace=namespace) as manager:
        manager.stop()
        await until(asyncio.all_tasks, lambda tasks: tasks <= before)
        await asyncio.sleep(0)


async def test_failing_manager_ends_the_block(config: Config, namespace: str) -> None:
    me = asyncio.current_task()
    assert me is not None
    async with running(
        Stamps(), config=config, namespace=namespace, health_address=SOMEWHERE
    ) as other:
        taken = (await until(lambda: other.probes.bound))["--health-address"]
        with pytest.raises(ListenError, match="give another address"):
            async with running(Stamps(), config=config, health_address=taken):
                await asyncio.Event().wait()
        assert me.cancelling() == 0


async def test_block_and_manager_end_at_once(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No task is canceled afterwards."""
    over = asyncio.get_running_loop().create_future()

    async def run(_: Manager) -> None:
        await over
        raise KeyError("a fish")

    monkeypatch.setattr(Manager, "run", run)

    async def end_with_it() -> None:
        async with running(Stamps(), config=config):
            await asyncio.sleep(0)
            over.set_result(None)
            await over
            await asyncio.sleep(0)

    with pytest.raises(KeyError, match="a fish"):
        await end_with_it()
    await asyncio.sleep(0)
