"""Our folders among those that XDG names: where state is kept, and where what can be got again."""

import os
from collections.abc import Mapping
from pathlib import Path


def state_folder(variables: Mapping[str, str] = os.environ) -> Path:
    """Where what must not be lost is kept."""
    return _ours(variables.get("XDG_STATE_HOME", ""), ".local/state")


def provider_folder(name: str) -> Path:
    """Where a provider that is run by hand keeps state; no environment can be called like that."""
    return state_folder() / f".{name}"


def cache_folder(variables: Mapping[str, str] = os.environ) -> Path:
    """Where what can be got again is kept."""
    return _ours(variables.get("XDG_CACHE_HOME", ""), ".cache")


def _ours(named: str, usual: str) -> Path:
    # The specification has relative paths ignored.
    return (Path(named) if named.startswith("/") else Path.home() / usual) / "capelin"
