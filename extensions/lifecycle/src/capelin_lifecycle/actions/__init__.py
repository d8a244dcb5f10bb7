"""The actions of policies, each in its module."""

from collections.abc import Callable, Mapping
from typing import Final

from capelin_lifecycle.actions.action import ActionRunner
from capelin_lifecycle.actions.apply import ApplyRunner, apply_expressions
from capelin_lifecycle.actions.approval import approval_problems
from capelin_lifecycle.actions.job import JobRunner, job_problems
from capelin_lifecycle.actions.quota import quota_expressions
from capelin_lifecycle.actions.topology import patches_expressions, patches_problems
from capelin_lifecycle.actions.validate import validate_expressions
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.sandbox.pool import Question

RUNNERS: Final[Mapping[str, ActionRunner]] = {
    "apply": ApplyRunner(),
    "job": JobRunner(),
}
"""The actions that work, by their names in YAML. All others are only decided."""

CHECKS: Final[Mapping[str, Callable[[KnownPolicy], list[str]]]] = {
    "approval": approval_problems,
    "job": job_problems,
    "patches": patches_problems,
}
"""Find problems of a policy's action that its CRD cannot express."""

EXPRESSIONS: Final[Mapping[str, Callable[[KnownPolicy], Mapping[str, Question]]]] = {
    "apply": apply_expressions,
    "patches": patches_expressions,
    "quota": quota_expressions,
    "validate": validate_expressions,
}
"""The expressions of a policy's action. Only the sandbox compiles them."""
