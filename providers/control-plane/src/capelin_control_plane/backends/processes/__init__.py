"""Control planes as processes of the machine that the provider runs on."""

from capelin_control_plane.backends.processes.backend import ProcessesBackend
from capelin_control_plane.backends.processes.recovery import recover

__all__ = ["ProcessesBackend", "recover"]
