"""Checks whether an extension, in any language, meets Cluster API's requirements."""

from capelin_conformance.extensions.rules import RULES, Rule
from capelin_conformance.extensions.runner import Report, RuleResult, check_extension

__all__ = ["RULES", "Report", "Rule", "RuleResult", "check_extension"]
