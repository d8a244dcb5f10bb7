"""The Runtime SDK: hooks and their versions, and extensions that serve them.

Cluster API's own hooks are in `capelin.runtime.v1alpha1`, patches and variables of managed
topologies in `capelin.runtime.topology`. `capelin.runtime.server` serves an extension, and
`capelin.runtime.client` calls one.
"""

from capelin.runtime.catalog import AnyHook, Catalog, Hook, HookId, deprecation_notice, load_catalog
from capelin.runtime.extension import Call, Extension, Handler, InvalidExtensionError
from capelin.runtime.messages import (
    Message,
    MessageError,
    Part,
    Request,
    Response,
    RetryResponse,
    Status,
)
from capelin.runtime.openapi import openapi_document
from capelin.runtime.results import Failure, HandlerResult, proceed, retry_after
from capelin.runtime.versions import CatalogError, Deprecation, Version, end_of_support

__all__ = [
    "AnyHook",
    "Call",
    "Catalog",
    "CatalogError",
    "Deprecation",
    "Extension",
    "Failure",
    "Handler",
    "HandlerResult",
    "Hook",
    "HookId",
    "InvalidExtensionError",
    "Message",
    "MessageError",
    "Part",
    "Request",
    "Response",
    "RetryResponse",
    "Status",
    "Version",
    "deprecation_notice",
    "end_of_support",
    "load_catalog",
    "openapi_document",
    "proceed",
    "retry_after",
]
