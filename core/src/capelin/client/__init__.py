"""One async Kubernetes client: typed verbs, watches, leader election, workload clusters."""

from capelin.client.access import ExecPlugin, Impersonation, Server, User
from capelin.client.applying import needs_apply
from capelin.client.client import Client, Token
from capelin.client.config import Config
from capelin.client.election import LeaderElection, LeadershipLost, Timing
from capelin.client.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    ClientError,
    ConfigError,
    Conflict,
    CredentialError,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    NotServed,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Unreachable,
    Unreadable,
)
from capelin.client.paths import Selector
from capelin.client.shapes import Listing
from capelin.client.transport import Options
from capelin.client.watch import Event
from capelin.client.workloads import WorkloadClients

__all__ = [
    "AlreadyExists",
    "ApiError",
    "BadRequest",
    "Client",
    "ClientError",
    "Config",
    "ConfigError",
    "Conflict",
    "CredentialError",
    "Event",
    "ExecPlugin",
    "Expired",
    "Forbidden",
    "Impersonation",
    "Invalid",
    "LeaderElection",
    "LeadershipLost",
    "Listing",
    "NotFound",
    "NotServed",
    "Options",
    "Selector",
    "Server",
    "Timing",
    "Token",
    "TooManyRequests",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "Unreadable",
    "User",
    "WorkloadClients",
    "needs_apply",
]
