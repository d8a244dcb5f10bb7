"""The caller's side of the Runtime SDK: from ExtensionConfigs to answers, as Cluster API does."""

from capelin.runtime.calling.addresses import Address, address_of, address_of_url
from capelin.runtime.calling.answers import Merge, check_status, merged, read_answer
from capelin.runtime.calling.caller import Caller, NamespaceLabels
from capelin.runtime.calling.connections import Connections, HttpAnswer, Identity
from capelin.runtime.calling.errors import (
    AddressError,
    CallingError,
    DiscoveryError,
    NoAnswerError,
    NoHandlerError,
    NoMergeRuleError,
    NotMeantError,
    RefusedError,
    TooManyHandlersError,
    Trouble,
    UnknownHandlerError,
)
from capelin.runtime.calling.metrics import CallMetrics
from capelin.runtime.calling.pacing import About, Backoff
from capelin.runtime.calling.registry import Registration, Registry, registrations_of

__all__ = [
    "About",
    "Address",
    "AddressError",
    "Backoff",
    "CallMetrics",
    "Caller",
    "CallingError",
    "Connections",
    "DiscoveryError",
    "HttpAnswer",
    "Identity",
    "Merge",
    "NamespaceLabels",
    "NoAnswerError",
    "NoHandlerError",
    "NoMergeRuleError",
    "NotMeantError",
    "RefusedError",
    "Registration",
    "Registry",
    "TooManyHandlersError",
    "Trouble",
    "UnknownHandlerError",
    "address_of",
    "address_of_url",
    "check_status",
    "merged",
    "read_answer",
    "registrations_of",
]
