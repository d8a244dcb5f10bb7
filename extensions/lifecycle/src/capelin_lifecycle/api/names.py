"""Hooks, and the texts that several kinds have."""

from typing import Annotated, Literal

from annotated_types import MaxLen, MinLen
from pydantic import Field

GROUP = "runtime.capelin.cluster.x-k8s.io"
VERSION = "v1alpha1"

UPGRADE_HOOKS = (
    "BeforeClusterUpgrade",
    "BeforeControlPlaneUpgrade",
    "AfterControlPlaneUpgrade",
    "BeforeWorkersUpgrade",
    "AfterWorkersUpgrade",
    "AfterClusterUpgrade",
)
LIFECYCLE_HOOKS = (
    "BeforeClusterCreate",
    "AfterControlPlaneInitialized",
    *UPGRADE_HOOKS,
    "BeforeClusterDelete",
)

HookName = Literal[
    "BeforeClusterCreate",
    "AfterControlPlaneInitialized",
    "BeforeClusterUpgrade",
    "BeforeControlPlaneUpgrade",
    "AfterControlPlaneUpgrade",
    "BeforeWorkersUpgrade",
    "AfterWorkersUpgrade",
    "AfterClusterUpgrade",
    "BeforeClusterDelete",
    "GeneratePatches",
    "ValidateTopology",
    "GenerateUpgradePlan",
]
Phase = Literal["Waiting", "Running", "Paused", "Done", "Failed"]
PolicyKind = Literal["LifecyclePolicy", "ClusterLifecyclePolicy"]

Expression = Annotated[str, MinLen(1), MaxLen(4096)]
Text = Annotated[str, MaxLen(1024)]
LabelKey = Annotated[str, MinLen(1), MaxLen(317)]
Key = Annotated[str, MinLen(1), MaxLen(253), Field(pattern=r"^[-._a-zA-Z0-9]+$")]
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
