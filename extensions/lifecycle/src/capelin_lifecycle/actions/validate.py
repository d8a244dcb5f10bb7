"""Checks rules about a Cluster before a step of its life."""

from datetime import datetime
from typing import Any

from capelin.api import Unstructured

from capelin_lifecycle.actions.action import Lasting, Outcome, Run, done, waiting
from capelin_lifecycle.api import Validate
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.sandbox.expressions import ExpressionError, expression_problems
from capelin_lifecycle.sandbox.pool import SANDBOX, Owner, Question

CLUSTER_VARIABLES = ("fromVersion", "now", "object", "toVersion")
"""For the hooks of a Cluster's life: `object` is the Cluster."""
TOPOLOGY_VARIABLES = ("templates", "variables")
"""For `ValidateTopology`: the variables by name, `builtin` among them, and the templates."""


def variables_for(policy: KnownPolicy) -> tuple[str, ...]:
    """The variables that the policy's rules have."""
    return TOPOLOGY_VARIABLES if policy.spec.hook == "ValidateTopology" else CLUSTER_VARIABLES


async def broken_rules(
    validate: Validate, names: tuple[str, ...], variables: dict[str, Any], owner: Owner
) -> list[str]:
    """The messages of the rules that do not hold."""
    questions = [Question(rule.expression, names, boolean=True) for rule in validate.rules_]
    answers = await SANDBOX.evaluate(owner, questions, variables)
    broken: list[str] = []
    for validation, holds in zip(validate.rules_, answers, strict=True):
        if isinstance(holds, ExpressionError):
            broken.append(f"{validation.message} (the rule has no value: {holds})")
        elif not holds:
            broken.append(validation.message)
    return broken


async def validate_outcome(
    policy: KnownPolicy,
    cluster_json: Unstructured,
    from_version: str | None,
    to_version: str | None,
    now: datetime,
) -> Outcome:
    """Whether the rules hold for a step in the life of a Cluster."""
    validate = policy.spec.action.validate_
    if validate is None:
        return done()
    variables = {
        "object": cluster_json,
        "fromVersion": from_version or "",
        "toVersion": to_version or "",
        "now": now,
    }
    owner = policy.owner(cluster_json["metadata"]["namespace"])
    broken = await broken_rules(validate, CLUSTER_VARIABLES, variables, owner)
    if not broken:
        return done()
    by_clock = any("now" in validation.expression for validation in validate.rules_)
    return waiting("; ".join(broken)[:1024], only_by_cluster=not by_clock)


class ValidateRunner(Lasting):
    """The action `validate`."""

    def problems(self, policy: KnownPolicy) -> list[str]:
        """Expressions that cannot be compiled."""
        validate = policy.spec.action.validate_
        rules = enumerate(validate.rules_ if validate else ())
        return expression_problems(
            [(f"rules[{number}].expression", rule.expression, True) for number, rule in rules],
            variables_for(policy),
        )

    async def reconcile(self, run: Run) -> Outcome:
        """Evaluate the rules."""
        spec = run.result.spec
        return await validate_outcome(
            run.policy, run.cluster_json, spec.from_version, spec.to_version, run.now
        )
