"""Checks whether the manifests of a provider, in any language, keep Cluster API's contracts."""

from capelin.conformance.providers.components import COMPONENT_RULES
from capelin.conformance.providers.definitions import KIND_RULES
from capelin.conformance.providers.manifests import (
    CustomKind,
    ProviderManifests,
    Subject,
    load_manifests,
    manifests_of,
)
from capelin.conformance.providers.rules import (
    CONTRACTS,
    Contract,
    NotApplicableError,
    Rule,
    rule,
    rules_of,
)
from capelin.conformance.providers.runner import check_manifests

__all__ = [
    "COMPONENT_RULES",
    "CONTRACTS",
    "KIND_RULES",
    "Contract",
    "CustomKind",
    "NotApplicableError",
    "ProviderManifests",
    "Rule",
    "Subject",
    "check_manifests",
    "load_manifests",
    "manifests_of",
    "rule",
    "rules_of",
]
