"""Judges a provider by every rule of a contract: its manifests, and its behaviour."""

import asyncio
import time
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

from capelin.api.core import Namespace
from capelin.client import ClientError
from capelin_embedded.management import apply_manifests

from capelin_conformance.providers.bench import Bench, World, stub_manifests
from capelin_conformance.providers.benches import BENCHES
from capelin_conformance.providers.components import COMPONENT_RULES
from capelin_conformance.providers.control_planes import CONTROL_PLANE_RULES
from capelin_conformance.providers.definitions import KIND_RULES
from capelin_conformance.providers.lifecycle import LIFECYCLE_RULES, BehaviourCheck
from capelin_conformance.providers.machines import MACHINE_RULES
from capelin_conformance.providers.manifests import ProviderManifests, Subject
from capelin_conformance.providers.moves import MOVE_RULES
from capelin_conformance.providers.resilience import RESILIENCE_RULES
from capelin_conformance.providers.rules import (
    Contract,
    NotApplicableError,
    Rule,
    UntriedError,
    rules_of,
)
from capelin_conformance.report import ConformanceReport, Outcome, Result

BEHAVIOUR_RULES: Final[tuple[Rule[BehaviourCheck], ...]] = (
    *LIFECYCLE_RULES,
    *MOVE_RULES,
    *RESILIENCE_RULES,
    *MACHINE_RULES,
    *CONTROL_PLANE_RULES,
)
_BEHAVIOUR: Final = "behaviour"
_UNTRIED_BEHAVIOUR: Final = "only the manifests were checked"
_CONCURRENT_CHECKS: Final = 6


def check_manifests(
    manifests: ProviderManifests, contract: Contract, kind: str | None = None
) -> ConformanceReport:
    """Check a provider's manifests against the rules of a contract.

    The behaviour of the kind is one rule without an answer, so that the report does not hide it.

    Args:
        manifests: The manifests.
        contract: The contract.
        kind: The kind that keeps it. By default, the only one with the usual suffix.

    Raises:
        InvalidInputError: no kind fits, or several do.
    """
    if contract == "clusterctl":
        components = rules_of(COMPONENT_RULES, contract)
        judged = [_judge_manifests(rule, contract, manifests) for rule in components]
        return ConformanceReport(contract, tuple(judged))
    subject = Subject.of(manifests, contract, kind)
    judged = [_judge_manifests(rule, contract, subject) for rule in rules_of(KIND_RULES, contract)]
    behaviour = Result(
        _BEHAVIOUR,
        f"The provider behaves as the contract {contract} requires.",
        "untried",
        reason=_UNTRIED_BEHAVIOUR,
    )
    return ConformanceReport(f"{contract}: {subject.kind.kind}", (*judged, behaviour))


async def check_behaviour(world: World) -> ConformanceReport:
    """Check a running provider against the rules of a contract with behaviour.

    Cluster API's core and the provider's manager run, and the provider's kinds are installed. Every
    rule is checked in a namespace of its own, which is deleted afterwards. The stub kinds stay.
    The first rule is the milestone. If it does not hold, no other rule can be tried.

    Raises:
        ClientError: the management cluster does not accept the stub kinds.
    """
    contract = world.subject.contract
    await apply_manifests(world.client, stub_manifests())
    began = time.monotonic()
    slots = asyncio.Semaphore(_CONCURRENT_CHECKS)
    milestone, *others = rules_of(BEHAVIOUR_RULES, contract)
    names = [rule.name for rule in others]
    first = await _judge_behaviour(milestone, world, slots)
    if first.outcome == "ok":
        together = [rule for rule in others if not rule.alone]
        judged = await asyncio.gather(*(_judge_behaviour(rule, world, slots) for rule in together))
        judged += [await _judge_behaviour(rule, world, slots) for rule in others if rule.alone]
        results = sorted(judged, key=lambda result: names.index(result.name))
    else:
        reason = f"the provider does not keep the rule {milestone.name}"
        results = [_result(rule, contract, "untried", reason=reason) for rule in others]
    title = f"{contract}: {world.subject.kind.kind}"
    return ConformanceReport(title, (first, *results), time.monotonic() - began)


def combined(manifests: ConformanceReport, behaviour: ConformanceReport) -> ConformanceReport:
    """One report about the manifests and the behaviour of a kind."""
    results = [result for result in manifests.results if result.name != _BEHAVIOUR]
    return ConformanceReport(manifests.title, (*results, *behaviour.results), behaviour.seconds)


def _judge_manifests(rule: Rule[Any], contract: Contract, subject: object) -> Result:
    try:
        problems = tuple(dict.fromkeys(rule.check(subject)))
    except NotApplicableError as error:
        return _result(rule, contract, "inapplicable", reason=str(error))
    return _judged(rule, contract, problems)


async def _judge_behaviour(
    rule: Rule[BehaviourCheck], world: World, slots: asyncio.Semaphore
) -> Result:
    contract = world.subject.contract
    async with slots:
        bench = BENCHES[contract](world, f"conformance-{uuid4().hex[:10]}")
        began = time.monotonic()
        try:
            problems = await _behaviour_problems(rule, bench)
        except NotApplicableError as error:
            return _result(rule, contract, "inapplicable", reason=str(error))
        except UntriedError as error:
            return _result(rule, contract, "untried", reason=str(error))
        return _judged(rule, contract, problems, time.monotonic() - began)


async def _behaviour_problems(rule: Rule[BehaviourCheck], bench: Bench) -> tuple[str, ...]:
    try:
        await bench.client.create(Namespace.of(bench.namespace))
        return tuple([problem async for problem in rule.check(bench)])
    except ClientError as error:
        # For example, the API server rejects a sample. That must not count as a pass.
        return (f"a request of the check failed: {error}",)
    finally:
        with suppress(ClientError):
            await bench.clean_up()


def _judged(
    rule: Rule[Any], contract: Contract, problems: tuple[str, ...], seconds: float = 0.0
) -> Result:
    broken: Outcome = "advice" if rule.advice else "failed"
    outcome = broken if problems else "ok"
    return _result(rule, contract, outcome, problems=problems, seconds=seconds)


def _result(
    rule: Rule[Any],
    contract: Contract,
    outcome: Outcome,
    *,
    problems: tuple[str, ...] = (),
    reason: str = "",
    seconds: float = 0.0,
) -> Result:
    return Result(
        name=rule.name,
        requirement=rule.requirement,
        outcome=outcome,
        problems=problems,
        hint=rule.hint if problems else "",
        source=rule.source(contract),
        reason=reason,
        seconds=seconds,
    )
