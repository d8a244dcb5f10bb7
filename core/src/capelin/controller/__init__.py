"""Level-based reconcilers: watches, queue, events, metrics, probes and the manager around them."""

from capelin.controller.command import main
from capelin.controller.context import Context
from capelin.controller.manager import Manager
from capelin.controller.options import Address, Options, OptionsError, flag
from capelin.controller.rbac import lease_rules, rbac
from capelin.controller.reconciler import Reconciler
from capelin.controller.results import After, Done, ObjectKey, Result, patience
from capelin.controller.watches import For, Owns, Permission, Watch, Watches

__all__ = [
    "Address",
    "After",
    "Context",
    "Done",
    "For",
    "Manager",
    "ObjectKey",
    "Options",
    "OptionsError",
    "Owns",
    "Permission",
    "Reconciler",
    "Result",
    "Watch",
    "Watches",
    "flag",
    "lease_rules",
    "main",
    "patience",
    "rbac",
]
