"""The Runtime SDK: hooks and their versions, and extensions that answer them.

Cluster API's own hooks are in `capelin.runtime.v1alpha1`; what changes templates is in
`capelin.runtime.topology`.
"""

from capelin.runtime.catalog import (
    AnyHook,
    Catalog,
    CatalogError,
    Conversion,
    Deprecation,
    Hook,
    HookId,
    Version,
    catalog_at,
)
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
from capelin.runtime.verdicts import (
    Answer,
    Failure,
    Proceed,
    Retry,
    Verdict,
    proceed,
    retry_after,
)

__all__ = [
    "Answer",
    "AnyHook",
    "Call",
    "Catalog",
    "CatalogError",
    "Conversion",
    "Deprecation",
    "Extension",
    "Failure",
    "Handler",
    "Hook",
    "HookId",
    "InvalidExtensionError",
    "Message",
    "MessageError",
    "Part",
    "Proceed",
    "Request",
    "Response",
    "Retry",
    "RetryResponse",
    "Status",
    "Verdict",
    "Version",
    "catalog_at",
    "openapi_document",
    "proceed",
    "retry_after",
]
