"""Checks whether a provider, in any language, keeps Cluster API's contracts."""

from capelin_conformance.providers.bench import Timing, World
from capelin_conformance.providers.benches import BENCHES
from capelin_conformance.providers.components import COMPONENT_RULES
from capelin_conformance.providers.definitions import KIND_RULES
from capelin_conformance.providers.manager import ManagerProcess
from capelin_conformance.providers.manifests import (
    CustomKind,
    ProviderManifests,
    Subject,
    load_manifests,
    load_samples,
    manifests_of,
)
from capelin_conformance.providers.rules import (
    CONTRACTS,
    Contract,
    NotApplicableError,
    Rule,
    UntriedError,
    rule,
    rules_of,
)
from capelin_conformance.providers.runner import (
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
