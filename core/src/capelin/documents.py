"""YAML, read by the quickest safe loader that there is."""

from collections.abc import Iterator
from typing import Any, Final

import yaml

# Up to ten times as fast where PyYAML was built with libyaml, as its wheels are.
_LOADER: Final[type[Any]] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: str | bytes) -> Any:
    """What one document says."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - both loaders are safe


def read_all_yaml(text: str | bytes) -> Iterator[Any]:
    """What each document says, read when it is asked for."""
    return yaml.load_all(text, Loader=_LOADER)
