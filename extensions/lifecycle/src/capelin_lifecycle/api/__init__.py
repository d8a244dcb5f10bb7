"""API types of the lifecycle extension: policies, and the results that they have."""

from capelin_lifecycle.api.actions import Approval
from capelin_lifecycle.api.names import GROUP, LIFECYCLE_HOOKS
from capelin_lifecycle.api.policies import ClusterLifecyclePolicy, LifecyclePolicy, Policy
from capelin_lifecycle.api.results import (
    LifecycleReservation,
    LifecycleResult,
    ResultSpec,
    ResultStatus,
)

__all__ = [
    "GROUP",
    "LIFECYCLE_HOOKS",
    "Approval",
    "ClusterLifecyclePolicy",
    "LifecyclePolicy",
    "LifecycleReservation",
    "LifecycleResult",
    "Policy",
    "ResultSpec",
    "ResultStatus",
]
