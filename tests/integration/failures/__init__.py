"""Failures of Clusters, each with one real cause. `capelin explain` must name it."""

from . import clusters, deletions, machines, refusals, topologies
from .scene import FAILURES, Failure, Scene

__all__ = [
    "FAILURES",
    "Failure",
    "Scene",
    "clusters",
    "deletions",
    "machines",
    "refusals",
    "topologies",
]
