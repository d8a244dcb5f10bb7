"""Failures of Clusters, each with one real cause. `capelin explain` must name it."""

from . import clusters, deletions, machines, refusals, topologies
from .scene import FAILURES, Failure, Scene, protected_pod

__all__ = [
    "FAILURES",
    "Failure",
    "Scene",
    "clusters",
    "deletions",
    "machines",
    "protected_pod",
    "refusals",
    "topologies",
]
