"""Level-based reconcilers: watches, queue, events, metrics, probes and the manager around them."""

from capelin.controller.context import Context
from capelin.controller.events import EventAggregator, EventRecord, Recorder
from capelin.controller.kopf_thread import WatchLostError
from capelin.controller.logs import explained, redact
from capelin.controller.manager import Manager, main
from capelin.controller.options import Address, Options
from capelin.controller.permissions import diagnostics_rules, lease_rules, rbac
from capelin.controller.queue import After, Done, ObjectKey, Result
from capelin.controller.reconciler import For, Owns, Permission, Reconciler, Watch, Watches
from capelin.controller.serving import ListenError
from capelin.flags import OptionsError, flag, parse, seconds

__all__ = [
    "Address",
    "After",
    "Context",
    "Done",
    "EventAggregator",
    "EventRecord",
    "For",
    "ListenError",
    "Manager",
    "ObjectKey",
    "Options",
    "OptionsError",
    "Owns",
    "Permission",
    "Reconciler",
    "Recorder",
    "Result",
    "Watch",
    "WatchLostError",
    "Watches",
    "diagnostics_rules",
    "explained",
    "flag",
    "lease_rules",
    "main",
    "parse",
    "rbac",
    "redact",
    "seconds",
]
