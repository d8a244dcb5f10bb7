"""Whether an extension, in whatever language, does what Cluster API needs of it."""

from capelin.runtime.conformance.examination import Report, Verdict, examine
from capelin.runtime.conformance.rules import RULES, Rule

__all__ = ["RULES", "Report", "Rule", "Verdict", "examine"]
