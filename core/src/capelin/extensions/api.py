"""The kind `Extension`: where a runtime extension is, and what it has said that it answers."""

from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen, MinLen
from pydantic import Field

from capelin.api import Column, Conditions, Definition, Model, Object, kind, rule
from capelin.api.fields import DNSLabel, Int64, LabelValue, Port, map_list
from capelin.api.views.capi import ExtensionConfig

Text = Annotated[str, MinLen(1), MaxLen(512)]
BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
MOST_HANDLERS = 512
"""More than that is a mistake of the extension."""


class Service(Model):
    """The Service that leads to an extension."""

    namespace: DNSLabel
    name: DNSLabel
    path: Text | None = None
    """What all of its paths begin with."""
    port: Port | None = None
    """443 when nothing is said."""


class ClientConfig(Model):
    """How an extension is reached: by URL or by Service."""

    url: Text | None = None
    """`https://host:port/prefix`."""
    service: Service | None = None
    ca_bundle: Annotated[str, MaxLen(2**19), Field(pattern=BASE64)] | None = None
    """Whom to trust, as PEM in base64; the system's roots when nothing is said."""

    rules = (rule("has(self.url) != has(self.service)", "say either url or service"),)


class Requirement(Model):
    """One condition on one label."""

    key: Annotated[str, MinLen(1), MaxLen(317)]
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[list[LabelValue], MaxLen(64)] = []


class Selector(Model):
    """Which namespaces, by their labels."""

    match_labels: Annotated[dict[str, LabelValue], MaxLen(64)] = {}
    match_expressions: Annotated[list[Requirement], MaxLen(64)] = []


class Spec(Model):
    """Where an extension is, and for whom it is called; as in Cluster API's ExtensionConfig."""

    client_config: ClientConfig
    namespace_selector: Selector | None = None
    """For which namespaces it is called; for all when nothing is said."""
    settings: Annotated[dict[str, Annotated[str, MaxLen(4096)]], MaxLen(100)] = {}
    """What it is told with every call."""


class GroupVersionHook(Model):
    """A hook in a version."""

    api_version: Text
    hook: Text


class Handler(Model):
    """A hook that an extension answers."""

    name: Text
    """`handler.extension`."""
    request_hook: GroupVersionHook
    timeout_seconds: Annotated[int, Ge(0), Le(30)]
    failure_policy: Literal["Fail", "Ignore"]


class Status(Model):
    """What an extension has said that it answers."""

    observed_generation: Annotated[Int64, Ge(0)] = 0
    handlers: Annotated[list[Handler], map_list("name"), MaxLen(MOST_HANDLERS)] = []
    """As last said; they stay while the extension does not answer."""
    conditions: Conditions = []


@kind(
    group="runtime.capelin.io",
    version="v1alpha1",
    namespaced=False,
    definition=Definition(
        columns=(
            Column("Discovered", '.status.conditions[?(@.type=="Discovered")].status'),
            Column("Reason", '.status.conditions[?(@.type=="Discovered")].reason'),
        )
    ),
)
class Extension(Object[Spec, Status]):
    """A runtime extension."""

    def config(self) -> ExtensionConfig:
        """The same as an ExtensionConfig, for a registry."""
        return ExtensionConfig.read(self.dump())
