"""Requests for every hook: about a made-up cluster, or about one that there is."""

from capelin.runtime.requests.example import example_scene
from capelin.runtime.requests.live import scene_of
from capelin.runtime.requests.scene import Scene, UsedPatch, UsedTemplate, request_for

__all__ = ["Scene", "UsedPatch", "UsedTemplate", "example_scene", "request_for", "scene_of"]
