"""Cluster API in Python: the building blocks of providers and Runtime Extensions.

These are the names that nearly every provider or extension needs. Each is imported from its own
module on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capelin.api import Definition, Model, Object, Template, kind
    from capelin.client import Client
    from capelin.controller import After, Context, Done, Result, main
    from capelin.provider import Blocked, Provider, ProviderReconciler
    from capelin.runtime import Call, Extension

_ROOMS = {
    "After": "controller",
    "Blocked": "provider",
    "Call": "runtime",
    "Client": "client",
    "Context": "controller",
    "Definition": "api",
    "Done": "controller",
    "Extension": "runtime",
    "Model": "api",
    "Object": "api",
    "Provider": "provider",
    "ProviderReconciler": "provider",
    "Result": "controller",
    "Template": "api",
    "kind": "api",
    "main": "controller",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'capelin' has no attribute {name!r}")
    return getattr(import_module(f"capelin.{_ROOMS[name]}"), name)


__all__ = [
    "After",
    "Blocked",
    "Call",
    "Client",
    "Context",
    "Definition",
    "Done",
    "Extension",
    "Model",
    "Object",
    "Provider",
    "ProviderReconciler",
    "Result",
    "Template",
    "kind",
    "main",
]
