"""The client of the Runtime SDK: calls handlers as Cluster API does.

`call` sends one request to a handler, and `discover` asks a server for its handlers.
"""

from capelin.runtime.client.calls import call, discover, encode
from capelin.runtime.client.discovery import (
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
    NoResponseError,
    RefusedError,
)
from capelin.runtime.client.http import ClientCertificate, Connections, HttpResponse
from capelin.runtime.client.responses import read_response

__all__ = [
    "CallError",
    "ClientCertificate",
    "Connections",
    "DiscoveryError",
    "Endpoint",
    "EndpointError",
    "FailureKind",
    "HttpResponse",
    "NoResponseError",
    "RefusedError",
    "call",
    "discover",
    "encode",
    "endpoint_of",
    "endpoint_of_url",
    "impossible_timeouts",
    "malformed_names",
    "problems_of",
    "read_response",
    "repeated_names",
    "unknown_hooks",
    "unknown_policies",
]
