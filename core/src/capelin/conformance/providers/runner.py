"""Judges the manifests of a provider by every rule of a contract."""

from typing import Any, Final

from capelin.conformance.providers.components import COMPONENT_RULES
from capelin.conformance.providers.definitions import KIND_RULES
from capelin.conformance.providers.manifests import ProviderManifests, Subject
from capelin.conformance.providers.rules import Contract, NotApplicableError, Rule, rules_of
from capelin.conformance.report import ConformanceReport, Result

_BEHAVIOUR: Final = "capelin conformance checks manifests only"


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
        judged = [_judge(rule, contract, manifests) for rule in components]
        return ConformanceReport(contract, tuple(judged))
    subject = Subject.of(manifests, contract, kind)
    judged = [_judge(rule, contract, subject) for rule in rules_of(KIND_RULES, contract)]
    behaviour = Result(
        "behaviour",
        f"The provider behaves as the contract {contract} requires.",
        "untried",
        reason=_BEHAVIOUR,
    )
    return ConformanceReport(f"{contract}: {subject.kind.kind}", (*judged, behaviour))


def _judge(rule: Rule[Any], contract: Contract, subject: object) -> Result:
    source = rule.source(contract)
    try:
        problems = tuple(dict.fromkeys(rule.check(subject)))
    except NotApplicableError as error:
        return Result(rule.name, rule.requirement, "inapplicable", source=source, reason=str(error))
    if not problems:
        return Result(rule.name, rule.requirement, "ok", source=source)
    outcome = "advice" if rule.advice else "failed"
    return Result(rule.name, rule.requirement, outcome, problems, rule.hint, source)
