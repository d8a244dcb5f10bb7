"""Hooks, and the texts that several kinds have."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final, Literal

from annotated_types import MaxLen, MinLen
from capelin.runtime import AnyHook
from capelin.runtime.v1alpha1 import (
    CLUSTER_API,
    BeforeClusterCreate,
    GeneratePatches,
    GenerateUpgradePlan,
    ValidateTopology,
)
from pydantic import Field

GROUP = "runtime.capelin.cluster.x-k8s.io"
VERSION = "v1alpha1"

LIFECYCLE_HOOKS: Final[Mapping[str, AnyHook]] = {
    hook.id.name: hook for hook in CLUSTER_API if hook.tag == BeforeClusterCreate.tag
}
"""The hooks of a Cluster's life, by their names in the catalog of Cluster API."""
UPGRADE_HOOKS: Final = tuple(name for name in LIFECYCLE_HOOKS if name.endswith("Upgrade"))
BLOCKING_HOOKS: Final = tuple(name for name, hook in LIFECYCLE_HOOKS.items() if hook.blocks())

if TYPE_CHECKING:
    HookName = str
else:
    HookName = Literal[
        (
            *LIFECYCLE_HOOKS,
            *(hook.id.name for hook in (GeneratePatches, ValidateTopology, GenerateUpgradePlan)),
        )
    ]
Phase = Literal["Waiting", "Running", "Paused", "Done", "Failed"]
PolicyKind = Literal["LifecyclePolicy", "ClusterLifecyclePolicy"]

Expression = Annotated[str, MinLen(1), MaxLen(4096)]
Text = Annotated[str, MaxLen(1024)]
LabelKey = Annotated[str, MinLen(1), MaxLen(317)]
VersionRange = Annotated[
    str,
    MinLen(1),
    MaxLen(128),
    Field(
        pattern=r"^(>=|<=|>|<|=)?v?[0-9]{1,3}\.[0-9]{1,4}(\.[0-9]{1,4})?"
        r"( (>=|<=|>|<|=)?v?[0-9]{1,3}\.[0-9]{1,4}(\.[0-9]{1,4})?){0,3}$"
    ),
]
"""Comparisons that all have to hold: `>=1.33 <1.35`. A bare `1.34` is that minor version."""
