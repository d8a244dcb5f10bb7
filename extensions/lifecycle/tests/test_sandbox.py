"""Expressions and manifests of policies cannot use more than their budget, nor others' turns."""

import asyncio
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from capelin.testing.waiting import until
from capelin_embedded.management.providers import installed_providers
from capelin_lifecycle.sandbox.expressions import ExpressionError
from capelin_lifecycle.sandbox.functions import read_amount
from capelin_lifecycle.sandbox.pool import (
    MIB,
    Budget,
    ManifestError,
    OverloadError,
    Owner,
    Question,
    Sandbox,
)

from tests.support.clock import MonotonicClock
from tests.support.kernel import memory

MALLORY = Owner("policy-of-mallory", 1, "mallory")
ALICE = Owner("policy-of-alice", 1, "alice")
SLOW = "it takes more than 100 ms of CPU time"
LARGE = "it needs more than 50 MiB of memory"
TEXT = "x" * 65_000
OBJECT: dict[str, Any] = {"text": TEXT, "numbers": list(range(90))}


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    sandbox = Sandbox()
    # The processes are ready before a test measures.
    both = (Owner("warm", 1, name) for name in ("a", "b"))
    await asyncio.gather(*(value(sandbox, "1 + 1", owner) for owner in both))
    yield sandbox
    sandbox.close()


async def value(sandbox: Sandbox, text: str, owner: Owner = ALICE) -> Any:
    (answer,) = await sandbox.evaluate(owner, [Question(text, ("object",))], {"object": OBJECT})
    return answer


@contextmanager
def bounded() -> Generator[None]:
    """Fail if this process uses more than 100 ms of CPU time or 50 MiB in the block."""
    before, cpu = memory("self", "VmHWM"), time.process_time()
    yield
    assert time.process_time() - cpu < 0.1
    assert memory("self", "VmHWM") - before < 50 * MIB


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"['aa']{'.map(x, x + x)' * 24}.size()", f"{LARGE}|{SLOW}"),
        # The parser doubles a chain at each of these macros.
        ("object.?a" + ".optMap(x, x)" * 20, f"{LARGE}|{SLOW}"),
        ("object.text.replace('x', object.text).size()", f"{LARGE}|{SLOW}"),
        ("quantity('1e1000000').asInteger()", "is not a quantity"),
        ("{'k8s.quantity': '1e99999999'}.asInteger()", "is not a quantity"),
        ("quantity('1').add({'k8s.quantity': '1e99999999'})", "is not a quantity"),
        ("object.numbers.all(n, object.numbers.all(m, !object.text.matches('(x+x+)+y')))", SLOW),
        # The speed of the machine decides which limit it reaches first.
        (f"object.numbers.map(n, {' + '.join(['object.text'] * 20)}).size()", f"{LARGE}|{SLOW}"),
        ("object.numbers.map(n, object.text)", LARGE),
    ],
)
async def test_an_attack_by_an_expression_ends_within_its_budget(
    sandbox: Sandbox, text: str, reason: str
) -> None:
    owner = Owner(text, 1, "mallory")
    with bounded():
        answer = await value(sandbox, text, owner)
    assert isinstance(answer, ExpressionError)
    assert re.search(reason, str(answer))
    assert await value(sandbox, "1 + 1") == 2


async def test_an_attack_by_compiling_ends_within_its_budget(sandbox: Sandbox) -> None:
    chain = {"when": Question("object.?a" + ".optMap(x, x)" * 20, ("object",))}
    with bounded():
        (problem,) = await sandbox.problems(Owner("chain", 1, "mallory"), chain)
    assert problem.startswith("the expressions cannot be compiled: it ")
    assert await value(sandbox, "1 + 1") == 2


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(
            [
                "l0: &l0 [x, x, x, x, x, x, x, x, x]",
                *(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12)),
            ]
        ),
        "[" * 100_000,
        "- " * 500_000,
        "{a: " * 30_000,
    ],
    ids=["aliases", "lists", "dashes", "maps"],
)
async def test_an_attack_by_manifests_ends_within_its_budget(sandbox: Sandbox, text: str) -> None:
    with bounded(), pytest.raises(ManifestError):
        await sandbox.manifests(Owner(text[:9], 1, "mallory"), text)
    assert await value(sandbox, "1 + 1") == 2


@pytest.mark.parametrize(
    "text",
    [
        "a: 123456789012345678901234567890",
        f"a: {':'.join(['59'] * 500)}",
        f"a: 0b{'1' * 5000}",
        "[" * 300 + "]" * 300,
        'a: "\\ud800"',
        "1: a",
    ],
    ids=["integer", "sexagesimal", "binary", "deep", "surrogate", "key"],
)
async def test_manifests_with_values_that_json_lacks_end_no_process(
    sandbox: Sandbox, text: str
) -> None:
    # Another owner than in the tests before: a policy that overran its budget waits.
    processes, owner = sandbox.processes, Owner(text[:9], 1, "values")
    for _ in range(2):
        # The second attempt shows that the policy need not wait.
        with pytest.raises(ManifestError, match="values that JSON does not have"):
            await sandbox.manifests(owner, text)
    assert sandbox.processes == processes


async def test_large_manifests_of_real_add_ons_are_within_their_budget(sandbox: Sandbox) -> None:
    sizes: list[int] = []
    for provider in installed_providers():
        # Without the anchors of values that several CRDs share.
        crds: list[Any] = orjson.loads(orjson.dumps([*provider.crds]))
        text = yaml.safe_dump_all(crds)
        assert len(await sandbox.manifests(ALICE, text)) == len(crds)
        sizes.append(len(text))
    assert len([size for size in sizes if size > 100_000]) == 3


async def test_a_policy_that_overruns_waits_longer_each_time_and_no_other_policy_does() -> None:
    clock = MonotonicClock(0.0)
    sandbox = Sandbox(budget=Budget(cpu_seconds=0.02), clock=clock)
    slow = "object.numbers.all(n, object.numbers.all(m, !object.text.matches('(x+x+)+y')))"
    try:
        first = str(await value(sandbox, slow, MALLORY))
        assert first == "it takes more than 20 ms of CPU time"
        # The same words, without an evaluation.
        assert str(await value(sandbox, "1 + 1", MALLORY)) == first
        for owner in (ALICE, Owner("policy-of-mallory", 2, "mallory")):
            assert await value(sandbox, "1 + 1", owner) == 2
        # A policy for all namespaces waits only for the Clusters that it is slow for.
        assert await value(sandbox, "1 + 1", Owner("policy-of-mallory", 1, "alice")) == 2
        clock.now = 11
        assert str(await value(sandbox, slow, MALLORY)) == first
        clock.now = 22
        assert str(await value(sandbox, "1 + 1", MALLORY)) == first
        clock.now = 32
        assert await value(sandbox, "1 + 1", MALLORY) == 2
    finally:
        sandbox.close()


async def test_slow_namespace_does_not_block_others(
    sandbox: Sandbox,
) -> None:
    slow = "object.numbers.all(n, !object.text.matches('(x+x+)+y'))"
    attack = asyncio.gather(
        *(value(sandbox, slow, Owner(f"slow-{n}", 1, "mallory")) for n in range(20))
    )
    before = time.monotonic()
    for _ in range(20):
        assert await value(sandbox, "1 + 1") == 2
    honest = time.monotonic() - before
    assert not attack.done()
    await attack
    assert honest < (time.monotonic() - before) / 2


async def test_worker_replacements_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sandbox = Sandbox()
    both = (Owner("warm", 1, name) for name in ("a", "b"))
    await asyncio.gather(*(value(sandbox, "1 + 1", owner) for owner in both))
    never_ready = tmp_path / "python"
    never_ready.write_text("#!/bin/sh\nexec sleep 60\n")
    never_ready.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(never_ready))
    slow = "object.numbers.all(n, object.numbers.all(m, !object.text.matches('(x+x+)+y')))"
    attack = [
        asyncio.create_task(value(sandbox, slow, Owner(f"slow-{n}", 1, "mallory")))
        for n in range(3)
    ]
    try:
        assert str(await attack[0]) == SLOW
        async with asyncio.timeout(10):
            for _ in range(10):
                assert await value(sandbox, "1 + 1") == 2
        assert not attack[1].done()
    finally:
        for task in attack:
            task.cancel()
        monkeypatch.undo()
        for process in sandbox.processes:
            os.kill(process, signal.SIGKILL)
    assert await value(sandbox, "1 + 1", MALLORY) == 2
    sandbox.close()


async def test_a_hook_without_time_leaves_the_worker_usable(sandbox: Sandbox) -> None:
    slow = "object.numbers.all(n, !object.text.matches('(x+x+)+y'))"
    waiting = asyncio.create_task(value(sandbox, slow, ALICE))
    # The first turn of the loop queues the expression, the second one sends it to a worker.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await value(sandbox, "1 + 1", ALICE) == 2


async def test_a_worker_that_keeps_memory_is_replaced_and_no_policy_pays_for_it() -> None:
    sandbox = Sandbox(workers=1, budget=Budget(memory=4 * MIB))
    # Workers keep compiled expressions, so that many of them fill the memory.
    parts = " + ".join(["size(object.text)"] * 20)
    processes: set[int] = set()
    try:
        for number in range(100):
            owner = Owner(f"policy-{number}", 1, "alice")
            assert await value(sandbox, f"{parts} + {number}", owner) == 20 * len(TEXT) + number
            processes.update(sandbox.processes)
        assert len(processes) > 1
    finally:
        sandbox.close()


async def stopped_worker(sandbox: Sandbox) -> int:
    """The process of a sandbox with one worker, which does nothing any more."""
    assert await value(sandbox, "1 + 1") == 2
    (process,) = sandbox.processes
    os.kill(process, signal.SIGSTOP)
    return process


async def evaluating(sandbox: Sandbox) -> asyncio.Task[Any]:
    """An expression that a worker has, in an owner's first attempt."""
    task = asyncio.create_task(value(sandbox, "1 + 1", MALLORY))
    # The first turn of the loop queues the expression, the second one sends it to the worker.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_an_expression_is_evaluated_again_when_the_machine_kills_its_worker() -> None:
    sandbox = Sandbox(workers=1)
    try:
        process = await stopped_worker(sandbox)
        task = await evaluating(sandbox)
        os.kill(process, signal.SIGKILL)
        assert await task == 2
    finally:
        sandbox.close()


async def test_retry_when_a_worker_gets_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandbox = Sandbox(workers=1)
    try:
        await stopped_worker(sandbox)
        monkeypatch.setattr("capelin_lifecycle.sandbox.pool._WALL_SECONDS", 2.0)
        assert await (await evaluating(sandbox)) == 2
    finally:
        sandbox.close()


async def test_no_policy_is_blamed_for_an_overloaded_machine() -> None:
    sandbox = Sandbox(workers=1)
    try:
        process = await stopped_worker(sandbox)
        task = await evaluating(sandbox)
        os.kill(process, signal.SIGKILL)
        # The process of the second attempt dies while it starts.
        (second,) = await until(lambda: [new for new in sandbox.processes if new != process])
        os.kill(second, signal.SIGKILL)
        with pytest.raises(OverloadError, match="lacks CPU time or memory"):
            await task
        assert await value(sandbox, "1 + 1", MALLORY) == 2
    finally:
        sandbox.close()


def open_sockets() -> set[int]:
    """The file descriptors of this process's sockets."""
    return {int(file.name) for file in Path("/proc/self/fd").iterdir() if file.is_socket()}


async def test_a_socket_is_read_whose_number_a_closed_worker_had() -> None:
    sandbox = Sandbox(workers=1)
    waiting = asyncio.create_task(value(sandbox, "1 + 1"))
    await until(lambda: sandbox.processes)
    sending, receiving = socket.socketpair()
    with sending, receiving:
        before = open_sockets()
        sandbox.close()
        (number,) = before - open_sockets()
        os.dup2(receiving.fileno(), number)
        with socket.socket(fileno=number) as same_number:
            same_number.setblocking(False)
            reading = asyncio.create_task(asyncio.get_running_loop().sock_recv(same_number, 1))
            with pytest.raises(OverloadError):
                await waiting
            sending.send(b"x")
            async with asyncio.timeout(5):
                assert await reading == b"x"
    # The next task starts a process again.
    assert await value(sandbox, "1 + 1") == 2
    sandbox.close()


async def test_worker_is_isolated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CAPELIN_TOKEN", "secret")
    fresh = Sandbox(workers=1)
    try:
        assert await value(fresh, "1 + 1") == 2
        (process,) = fresh.processes
        folder = Path("/proc", str(process))
        assert b"CAPELIN_TOKEN" not in folder.joinpath("environ").read_bytes()
        links = [str(link.readlink()) for link in folder.joinpath("fd").iterdir()]
        assert [link for link in links[:2] if not link.startswith("socket:")] == []
        assert len(links) == 3
    finally:
        fresh.close()


async def test_invalid_json_values_affect_one_policy(
    sandbox: Sandbox,
) -> None:
    questions = [Question(text, ()) for text in ("b'a'", "{1: 2}", "'a'")]
    first, second, third = await sandbox.evaluate(ALICE, questions, {})
    assert str(first) == str(second) == "it gives a value that JSON does not have"
    assert third == "a"


@pytest.mark.parametrize("text", ["1e99", "-1.5Gi", "1" * 160, ".5"])
def test_amounts_of_bounded_size_are_read(text: str) -> None:
    assert len(f"{read_amount(text):f}") < 400


@pytest.mark.parametrize("text", ["1e100", "NaN", "Infinity", "1" * 200, "1_000", "٣", "1e1000000"])
def test_unknown_amounts_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        read_amount(text)


async def test_one_expression_for_500_clusters_is_fast(
    sandbox: Sandbox,
) -> None:
    cluster = {"spec": {"workers": [{"class": "w", "replicas": 3, "notes": "x" * 50}] * 30}}
    question = Question("object.spec.workers.all(w, w.replicas < 100)", ("object",), boolean=True)
    assert len(orjson.dumps(cluster)) > 1500
    before = time.process_time()
    for _ in range(500):
        assert await sandbox.evaluate(ALICE, [question], {"object": cluster}) == [True]
    assert time.process_time() - before < 1
