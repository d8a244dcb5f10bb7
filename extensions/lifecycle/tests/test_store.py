"""The copies of a replica when some objects cannot be read."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from capelin.api import Condition
from capelin.client import Client, Event, UnreadableObject
from capelin.client.codecs import Listing
from capelin.controller import ObjectKey
from capelin.testing.fake_client import FakeClient
from capelin.testing.waiting import until
from capelin_lifecycle.api.policies import LifecyclePolicy, PolicyStatus
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.store import Store
from capelin_lifecycle.reconcilers.policies import (
    expressions_problem,
    policy_problem,
    unreadable_status,
)

from .factories import policy

RESOURCE = LifecyclePolicy.resource


def unreadable(name: str) -> UnreadableObject:
    metadata = {"name": name, "namespace": "team", "uid": f"uid-of-{name}"}
    return UnreadableObject.of(RESOURCE, metadata, "it is nested too deep")


class Scripted(Client):
    """A client with one list and one watch of policies."""

    def __init__(self, listed: Listing[Any], *events: Event[Any]) -> None:
        super().__init__(FakeClient().config)
        self._listed = listed
        self._events = events

    async def list(self, *_: Any, **__: Any) -> Any:
        return self._listed

    async def watch(
        self, *_: Any, on_unreadable: Callable[[Event[UnreadableObject]], None], **__: Any
    ) -> AsyncGenerator[Event[Any]]:
        for event in self._events:
            if isinstance(event.object, UnreadableObject):
                on_unreadable(event)
            else:
                yield event
        await asyncio.Event().wait()


async def followed(listed: Listing[Any], *events: Event[Any]) -> Store:
    store = Store(policy_problem)
    client = Scripted(listed, *events)
    following = asyncio.create_task(store.follow_kind(client, LifecyclePolicy))
    last = events[-1].object
    key = (
        ObjectKey(*last.key)
        if isinstance(last, UnreadableObject)
        else ObjectKey(last.namespace or "", last.name)
    )
    await until(
        lambda: (
            store.policy("LifecyclePolicy", "team", key.name) is not None
            or (RESOURCE, key) in store.unreadable
        )
    )
    following.cancel()
    return store


def names(store: Store) -> dict[str, str | None]:
    return {known.name: known.problem for known in store.policies()}


async def test_an_unreadable_policy_hides_no_other_one() -> None:
    listed = Listing([policy("first")], "1", (unreadable("poison"),))
    store = await followed(
        listed, Event("ADDED", unreadable("worse")), Event("ADDED", policy("second"))
    )
    assert names(store) == {"first": None, "second": None}
    assert {key.name for _, key in store.unreadable} == {"poison", "worse"}


async def test_a_policy_that_becomes_unreadable_blocks_its_clusters() -> None:
    store = await followed(
        Listing([policy("first"), policy("gone")], "1", ()),
        Event("MODIFIED", unreadable("first")),
        Event("MODIFIED", unreadable("gone")),
        Event("DELETED", unreadable("gone")),
        Event("ADDED", policy("last")),
    )
    assert names(store) == {
        "first": "it cannot be read: it is nested too deep",
        "last": None,
    }
    (known,) = [known for known in store.policies("BeforeClusterUpgrade") if known.problem]
    assert known.name == "first"


async def test_a_policy_that_can_be_read_again_is_used_again() -> None:
    store = await followed(
        Listing([policy("first")], "1", ()),
        Event("MODIFIED", unreadable("first")),
        Event("MODIFIED", policy("first")),
        Event("ADDED", policy("last")),
    )
    assert names(store) == {"first": None, "last": None}
    assert store.unreadable == {}


async def test_no_expression_is_compiled_in_the_process_of_the_hooks() -> None:
    slow = f"size([{', '.join(['[].filter(x,x)'] * 250)}]) > 0"
    action = {"validate": {"rules": [{"expression": slow, "message": "m"}] * 8}}
    changed = policy(hook="BeforeClusterCreate", action=action)
    store, before = Store(policy_problem), time.process_time()
    for number in range(5):
        changed.metadata.generation = number
        store.note(changed)
        assert await expressions_problem(KnownPolicy.of(changed)) is None
    assert time.process_time() - before < 0.2


@pytest.mark.parametrize(
    ("reason", "generation", "problem"),
    [
        ("InvalidConfiguration", 2, "rules[0].expression: Syntax error"),
        ("InvalidConfiguration", 1, None),
        ("Unreadable", 2, None),
    ],
)
def test_replicas_read_the_problem_of_expressions_in_the_status(
    reason: str, generation: int, problem: str | None
) -> None:
    condition = Condition(
        type="Valid",
        status="False",
        reason=reason,
        message="rules[0].expression: Syntax error",
        observed_generation=generation,
        last_transition_time=datetime(2026, 1, 1, tzinfo=UTC),
    )
    store, reported = Store(policy_problem), policy("reported")
    reported.metadata.generation = 2
    store.note(reported)
    assert names(store) == {"reported": None}
    store.note(reported.model_copy(update={"status": PolicyStatus(conditions=[condition])}))
    assert names(store) == {"reported": problem}


def test_the_condition_of_an_unreadable_policy_has_the_reason() -> None:
    status = unreadable_status(unreadable("poison"), "2026-01-01T00:00:00Z")
    assert status["metadata"] == {
        "name": "poison",
        "namespace": "team",
        "uid": "uid-of-poison",
    }
    valid = status["status"]["conditions"][0]
    assert (valid["type"], valid["status"], valid["reason"]) == ("Valid", "False", "Unreadable")
    assert valid["message"] == "the policy cannot be read: it is nested too deep"
