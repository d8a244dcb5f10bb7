"""Checks rules about a Cluster before a step of its life."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from capelin_lifecycle.api.actions import Validate
from capelin_lifecycle.policies.clusters import KnownCluster, Occurrence
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.verdict import Verdict, done, waiting
from capelin_lifecycle.sandbox.expressions import ExpressionError
from capelin_lifecycle.sandbox.pool import SANDBOX, Owner, Question

CLUSTER_VARIABLES = ("fromVersion", "now", "object", "toVersion")
"""For the hooks of a Cluster's life: `object` is the Cluster."""
TOPOLOGY_VARIABLES = ("templates", "variables")
"""For `ValidateTopology`: the variables by name, `builtin` among them, and the templates."""


def validate_expressions(policy: KnownPolicy) -> dict[str, Question]:
    is_topology = policy.spec.hook == "ValidateTopology"
    names = TOPOLOGY_VARIABLES if is_topology else CLUSTER_VARIABLES
    validate = policy.spec.action.validate_
    questions = _questions(validate, names) if validate else []
    return {f"rules[{number}].expression": each for number, each in enumerate(questions)}


def _questions(validate: Validate, names: tuple[str, ...]) -> list[Question]:
    return [Question(rule.expression, names, boolean=True) for rule in validate.rules_]


async def evaluated(
    validate: Validate, names: tuple[str, ...], variables: dict[str, Any], owner: Owner
) -> list[Any]:
    """The value of each rule, or why it has none."""
    return await SANDBOX.evaluate(owner, _questions(validate, names), variables)


async def rule_values(
    policy: KnownPolicy,
    validate: Validate,
    cluster: KnownCluster,
    hook: Occurrence,
    now: datetime,
) -> list[Any]:
    """The values of the rules for a step in the life of a Cluster."""
    variables = {
        "object": cluster.manifest,
        "fromVersion": hook.from_version or "",
        "toVersion": hook.to_version or "",
        "now": now,
    }
    owner = policy.owner(cluster.occurrence.namespace)
    return await evaluated(validate, CLUSTER_VARIABLES, variables, owner)


def broken_rules(validate: Validate, values: Sequence[Any]) -> list[str]:
    """The messages of the rules that do not hold."""
    broken: list[str] = []
    for validation, holds in zip(validate.rules_, values, strict=True):
        if isinstance(holds, ExpressionError):
            broken.append(f"{validation.message} (the rule has no value: {holds})")
        elif not holds:
            broken.append(validation.message)
    return broken


def rules_verdict(validate: Validate, values: Sequence[Any]) -> Verdict:
    broken = broken_rules(validate, values)
    if not broken:
        return done()
    by_clock = any("now" in validation.expression for validation in validate.rules_)
    return waiting("; ".join(broken)[:1024], only_by_cluster=not by_clock)
