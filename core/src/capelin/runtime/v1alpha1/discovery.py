"""The hook by which a server reports its handlers."""

import re
from typing import Annotated, Literal

from capelin.runtime.catalog import Hook
from capelin.runtime.messages import Int32, Message, Part, Required, Response
from capelin.runtime.v1alpha1.common import API_VERSION, CLUSTER_API

GO_PACKAGE = "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"

FailurePolicy = Literal["Fail", "Ignore"]
"""The caller's reaction to a call without a response. It never ignores a `Failure`."""

HANDLER_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""The name of a handler is a DNS label."""

MAX_TIMEOUT_SECONDS = 30
"""The longest timeout that Cluster API accepts."""

DEFAULT_TIMEOUT_SECONDS = 10
"""The timeout of a handler that sets none."""


class GroupVersionHook(Part):
    """A hook in a version."""

    api_version: Annotated[str, Required()] = ""
    hook: Annotated[str, Required()] = ""


class ExtensionHandler(Part):
    """A handler of the server."""

    name: Annotated[str, Required()] = ""
    request_hook: Annotated[GroupVersionHook, Required()] = GroupVersionHook()
    timeout_seconds: Int32 | None = None
    failure_policy: str | None = None


class DiscoveryRequest(Message):
    """Requests the handlers."""


class DiscoveryResponse(Response):
    """The handlers of a server."""

    handlers: list[ExtensionHandler] = []


@CLUSTER_API.hook(
    API_VERSION,
    tag="Discovery",
    summary="Lists the handlers of a server",
    singleton=True,
    pure=True,
)
class Discovery(Hook[DiscoveryRequest, DiscoveryResponse]):
    """Called when an ExtensionConfig changes, and every few minutes.

    `Extension` responds from its registrations.
    """
