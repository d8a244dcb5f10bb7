"""An async Kubernetes client: typed requests, watches, leader election, workload clusters."""

from capelin.client.apply import needs_apply
from capelin.client.auth import Credentials, load_certificate, tls_context
from capelin.client.cache import Delivered, Feed, ObjectCache, version_of
from capelin.client.client import Client, Token
from capelin.client.codecs import Kind, Listing, Selector, path_of
from capelin.client.config import Config, new_kubeconfig, safe_kubeconfig
from capelin.client.destinations import Destinations, guarded_connector
from capelin.client.election import ElectionTiming, LeaderElection, LeadershipLost
from capelin.client.endpoints import (
    AllowedEndpoint,
    EndpointRefusedError,
    allowed_destinations,
    read_endpoints,
)
from capelin.client.errors import (
    AddressRefusedError,
    AlreadyExists,
    ApiError,
    BadRequest,
    CircuitOpen,
    ClientError,
    ConfigError,
    Conflict,
    CredentialError,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    NotServed,
    ResponseTooLarge,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Unreachable,
    Unreadable,
    describe_connection_error,
)
from capelin.client.server import ExecPlugin, Impersonation, Server, User
from capelin.client.transport import ClientOptions, Request, Response, proxy_for, read_at_most
from capelin.client.unreadable import UnreadableLog, UnreadableObject, reason_of
from capelin.client.watch import Event, OnUnreadable
from capelin.client.workload_clients import WORKLOAD_OPTIONS, WorkloadClients

__all__ = [
    "WORKLOAD_OPTIONS",
    "AddressRefusedError",
    "AllowedEndpoint",
    "AlreadyExists",
    "ApiError",
    "BadRequest",
    "CircuitOpen",
    "Client",
    "ClientError",
    "ClientOptions",
    "Config",
    "ConfigError",
    "Conflict",
    "CredentialError",
    "Credentials",
    "Delivered",
    "Destinations",
    "ElectionTiming",
    "EndpointRefusedError",
    "Event",
    "ExecPlugin",
    "Expired",
    "Feed",
    "Forbidden",
    "Impersonation",
    "Invalid",
    "Kind",
    "LeaderElection",
    "LeadershipLost",
    "Listing",
    "NotFound",
    "NotServed",
    "ObjectCache",
    "OnUnreadable",
    "Request",
    "Response",
    "ResponseTooLarge",
    "Selector",
    "Server",
    "Token",
    "TooManyRequests",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "Unreadable",
    "UnreadableLog",
    "UnreadableObject",
    "User",
    "WorkloadClients",
    "allowed_destinations",
    "describe_connection_error",
    "guarded_connector",
    "load_certificate",
    "needs_apply",
    "new_kubeconfig",
    "path_of",
    "proxy_for",
    "read_at_most",
    "read_endpoints",
    "reason_of",
    "safe_kubeconfig",
    "tls_context",
    "version_of",
]
