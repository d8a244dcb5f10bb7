"""Checks whether an extension, in whatever language, does what Cluster API needs of it."""

from capelin.conformance.extensions.rules import RULES, Rule
from capelin.conformance.extensions.runner import Report, RuleResult, check_extension

__all__ = ["RULES", "Report", "Rule", "RuleResult", "check_extension"]
