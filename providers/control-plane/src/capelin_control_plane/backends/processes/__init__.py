"""Control planes as processes of the machine that the provider runs on."""

from capelin_control_plane.backends.processes.backend import ProcessesBackend

__all__ = ["ProcessesBackend"]
