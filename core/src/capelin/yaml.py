"""YAML, parsed by the fastest safe loader that is installed."""

from collections.abc import Iterator
from typing import Any, Final

import yaml

# Up to ten times as fast where PyYAML was built with libyaml, as its wheels are.
_LOADER: Final[type[Any]] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(text: str | bytes) -> Any:
    """Parse one document."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - both loaders are safe


def read_all_yaml(text: str | bytes) -> Iterator[Any]:
    """Parse documents one after the other, each when it is asked for."""
    return yaml.load_all(text, Loader=_LOADER)
