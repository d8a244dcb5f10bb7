"""The hook by which a server says what it answers."""

import re
from typing import Annotated, Literal

from capelin.runtime.catalog import Hook
from capelin.runtime.messages import PLAIN_STRING, Int32, Message, Part, Response
from capelin.runtime.v1alpha1.common import API_VERSION, CLUSTER_API

GO_PACKAGE = "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"

FailurePolicy = Annotated[Literal["Fail", "Ignore"], PLAIN_STRING]
"""What the caller makes of a call that brings no answer. A `Failure` is never ignored."""

HANDLER_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""What a handler may be called: a DNS label."""

MAX_TIMEOUT_SECONDS = 30
"""For how long callers wait at most."""


class GroupVersionHook(Part):
    """A hook in a version."""

    api_version: str
    hook: str


class ExtensionHandler(Part):
    """A handler of the server."""

    name: str
    request_hook: GroupVersionHook
    timeout_seconds: Int32 | None = None
    failure_policy: FailurePolicy | None = None


class DiscoveryRequest(Message):
    """Asks for the handlers."""


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

    `Extension` answers it from its registrations.
    """
