"""ExtensionConfigs: which runtime extensions are called, and what for."""

from pydantic import Field

from capelin.api.meta import Condition
from capelin.api.model import Model
from capelin.api.objects import BaseObject, kind
from capelin.api.views.core import Bytes, LabelSelector


class ServiceReference(Model):
    """The service that leads to an extension."""

    namespace: str | None = None
    name: str | None = None
    path: str | None = None
    port: int | None = None


class ExtensionClientConfig(Model):
    """How an extension is reached: by URL or by service."""

    url: str | None = None
    service: ServiceReference | None = None
    ca_bundle: Bytes | None = None


class ExtensionConfigSpec(Model):
    """Where an extension is, and for whom it is called."""

    client_config: ExtensionClientConfig = Field(default_factory=ExtensionClientConfig)
    namespace_selector: LabelSelector | None = None
    settings: dict[str, str] = {}


class GroupVersionHook(Model):
    """A hook in a version."""

    api_version: str
    hook: str


class ExtensionHandler(Model):
    """A hook that an extension answers."""

    name: str
    request_hook: GroupVersionHook
    timeout_seconds: int | None = None
    failure_policy: str | None = None


class ExtensionConfigStatus(Model):
    """What an extension has said that it answers."""

    conditions: list[Condition] = []
    handlers: list[ExtensionHandler] = []


@kind(group="runtime.cluster.x-k8s.io", version="v1beta2", namespaced=False)
class ExtensionConfig(BaseObject):
    """A runtime extension."""

    spec: ExtensionConfigSpec = Field(default_factory=ExtensionConfigSpec)
    status: ExtensionConfigStatus = Field(default_factory=ExtensionConfigStatus)
