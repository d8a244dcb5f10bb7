"""Checks whether a provider, in any language, keeps Cluster API's contracts."""

from capelin.conformance.providers.bench import Timing, World
from capelin.conformance.providers.benches import BENCHES
from capelin.conformance.providers.components import COMPONENT_RULES
from capelin.conformance.providers.definitions import KIND_RULES
from capelin.conformance.providers.manager import ManagerProcess
from capelin.conformance.providers.manifests import (
    CustomKind,
    ProviderManifests,
    Subject,
    load_manifests,
    load_samples,
    manifests_of,
)
from capelin.conformance.providers.rules import (
    CONTRACTS,
    Contract,
    NotApplicableError,
    Rule,
    UntriedError,
    rule,
    rules_of,
)
from capelin.conformance.providers.runner import (
    BEHAVIOUR_RULES,
    check_behaviour,
    check_manifests,
    combined,
)

__all__ = [
    "BEHAVIOUR_RULES",
    "BENCHES",
    "COMPONENT_RULES",
    "CONTRACTS",
    "KIND_RULES",
    "Contract",
    "CustomKind",
    "ManagerProcess",
    "NotApplicableError",
    "ProviderManifests",
    "Rule",
    "Subject",
    "Timing",
    "UntriedError",
    "World",
    "check_behaviour",
    "check_manifests",
    "combined",
    "load_manifests",
    "load_samples",
    "manifests_of",
    "rule",
    "rules_of",
]
