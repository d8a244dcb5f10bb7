"""A kind for runtime extensions and its controller, for systems without Cluster API's core."""

from capelin.extensions.api import Extension
from capelin.extensions.controller import Extensions
from capelin.extensions.manifests import manifests

__all__ = ["Extension", "Extensions", "manifests"]
