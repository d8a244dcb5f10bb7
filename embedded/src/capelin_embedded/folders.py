"""Capelin's folders for state and for caches, with the names of the XDG specification.

`platformdirs` would add a dependency for these three lines, and other folders on macOS.
"""

import os
from collections.abc import Mapping
from pathlib import Path


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The folder for state that must survive."""
    return _xdg_folder(environ, "XDG_STATE_HOME", ".local/state")


def provider_folder(name: str) -> Path:
    """The state folder of a provider that a user starts. No environment can have this name."""
    return state_folder() / f".{name}"


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The folder for files that can be downloaded or built again."""
    return _xdg_folder(environ, "XDG_CACHE_HOME", ".cache")


def _xdg_folder(environ: Mapping[str, str] | None, name: str, default: str) -> Path:
    variable = (os.environ if environ is None else environ).get(name, "")
    # The specification requires that relative paths are ignored.
    return (Path(variable) if variable.startswith("/") else Path.home() / default) / "capelin"
