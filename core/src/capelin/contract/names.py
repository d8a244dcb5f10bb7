"""Names that follow from other names: of CRDs, templates, label values, providers' files."""

import base64
import re
from typing import Literal

from capelin.api import plural_of

_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", re.ASCII)
_LONGEST_LABEL_VALUE = 63
_TEMPLATE = "Template"

ProviderType = Literal[
    "CoreProvider",
    "BootstrapProvider",
    "ControlPlaneProvider",
    "InfrastructureProvider",
    "IPAMProvider",
    "RuntimeExtensionProvider",
    "AddonProvider",
]
"""What clusterctl calls the kinds of providers."""

_PREFIXES: dict[ProviderType, str] = {
    "CoreProvider": "core",
    "BootstrapProvider": "bootstrap",
    "ControlPlaneProvider": "control-plane",
    "InfrastructureProvider": "infrastructure",
    "IPAMProvider": "ipam",
    "RuntimeExtensionProvider": "runtime-extension",
    "AddonProvider": "addon",
}


def crd_name(group: str, kind: str) -> str:
    """The name under which core looks for a kind's CRD. Rules `*/definition`.

    True of the words that contract kinds end in; core's own rules of English know many more.
    """
    return f"{plural_of(kind)}.{group}"


def template_of(kind: str) -> str:
    """The kind that objects of `kind` are made from in a ClusterClass. Rules `*/template`."""
    return kind + _TEMPLATE


def made_from(template_kind: str) -> str:
    """The kind of what is made from a template."""
    if not template_kind.endswith(_TEMPLATE) or template_kind == _TEMPLATE:
        raise ValueError(f"{template_kind} is not the kind of a template: those end in {_TEMPLATE}")
    return template_kind.removesuffix(_TEMPLATE)


def label_value(name: str) -> str:
    """An object's name as the value of a label: itself where it fits, else a hash of it.

    Core computes the same, to find objects by it.
    """
    if len(name) <= _LONGEST_LABEL_VALUE and _LABEL_VALUE.fullmatch(name):
        return name
    digest = base64.urlsafe_b64encode(_fnv_32a(name.encode()).to_bytes(4, "big"))
    return f"hash_{digest.decode().rstrip('=')}_z"


def provider_label(type_: ProviderType, name: str) -> str:
    """The value of `cluster.x-k8s.io/provider` on what it installs. Rule `clusterctl/labels`."""
    return name if type_ == "CoreProvider" else f"{_PREFIXES[type_]}-{name}"


def components_file(type_: ProviderType) -> str:
    """The name of a provider's components file. Rule `clusterctl/components-name`."""
    return f"{_PREFIXES[type_]}-components.yaml"


def _fnv_32a(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value
