"""The client of the Runtime SDK: calls handlers as Cluster API does.

`call` sends one request, `discover` asks a server for its handlers, and `Caller` calls the handlers
of a `Registry` with retries, caching, failure policies and merged responses.
"""

from capelin.client import Backoff
from capelin.runtime.client.backoff import NamespacedName
from capelin.runtime.client.caller import Caller, NamespaceLabels
from capelin.runtime.client.calls import call, discover, encode
from capelin.runtime.client.discovery import (
    accepted,
    impossible_timeouts,
    malformed_names,
    problems_of,
    repeated_names,
    unknown_hooks,
    unknown_policies,
)
from capelin.runtime.client.endpoint import Endpoint, endpoint_of, endpoint_of_url
from capelin.runtime.client.errors import (
    CallError,
    DiscoveryError,
    EndpointError,
    FailureKind,
    NamespaceMismatchError,
    NoHandlerError,
    NoMergeRuleError,
    NoResponseError,
    RefusedError,
    TooManyHandlersError,
    UnknownHandlerError,
)
from capelin.runtime.client.http import ClientCertificate, Connections, HttpResponse
from capelin.runtime.client.metrics import CallMetrics
from capelin.runtime.client.registry import RegisteredHandler, Registry, registered_handlers
from capelin.runtime.client.responses import Merge, merge_responses, read_response

__all__ = [
    "Backoff",
    "CallError",
    "CallMetrics",
    "Caller",
    "ClientCertificate",
    "Connections",
    "DiscoveryError",
    "Endpoint",
    "EndpointError",
    "FailureKind",
    "HttpResponse",
    "Merge",
    "NamespaceLabels",
    "NamespaceMismatchError",
    "NamespacedName",
    "NoHandlerError",
    "NoMergeRuleError",
    "NoResponseError",
    "RefusedError",
    "RegisteredHandler",
    "Registry",
    "TooManyHandlersError",
    "UnknownHandlerError",
    "accepted",
    "call",
    "discover",
    "encode",
    "endpoint_of",
    "endpoint_of_url",
    "impossible_timeouts",
    "malformed_names",
    "merge_responses",
    "problems_of",
    "read_response",
    "registered_handlers",
    "repeated_names",
    "unknown_hooks",
    "unknown_policies",
]
