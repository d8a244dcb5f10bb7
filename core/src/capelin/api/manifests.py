"""Manifests as YAML files."""

from collections.abc import Iterable

import yaml

from capelin.api.objects import Unstructured


def to_yaml(manifests: Iterable[Unstructured]) -> str:
    """The manifests as YAML documents, each opened by `---`; the same ones give the same text."""
    return yaml.safe_dump_all(
        manifests, sort_keys=False, explicit_start=True, width=100, allow_unicode=True
    )
