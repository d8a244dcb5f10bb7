"""YAML, read and written by the fastest safe parser and emitter that are installed."""

from collections.abc import Iterator
from typing import Any, Final, cast

import yaml

# Up to ten times as fast if PyYAML was built with libyaml. Its wheels are.
_LOADER: Final[type[Any]] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
SAFE_DUMPER: Final[type[yaml.SafeDumper]] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""For custom representers. `width` must be a whole number."""


def read_yaml(text: str | bytes) -> Any:
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - both loaders are safe


def read_all_yaml(text: str | bytes) -> Iterator[Any]:
    """Parse documents one after the other, on demand."""
    return yaml.load_all(text, Loader=_LOADER)


def write_yaml(value: Any, *, sort_keys: bool = False) -> str:
    return yaml.dump(value, Dumper=SAFE_DUMPER, sort_keys=sort_keys, default_flow_style=False)


def read_untrusted_yaml(text: str | bytes) -> Any:
    """Parse one document from an untrusted source.

    Parsers do not agree on merge keys, duplicate keys, tags and the like, so another program could
    read the same bytes differently. This rejects documents that contain them.

    Raises:
        yaml.YAMLError: The text is not YAML, or parsers may read it differently.
    """
    loader = _untrusted_loader(text)
    try:
        return _construct(loader, loader.get_single_node())
    finally:
        loader.dispose()


def read_all_untrusted_yaml(text: str | bytes) -> Iterator[Any]:
    """Parse documents from an untrusted source, on demand.

    Raises:
        yaml.YAMLError: A document is not YAML, or parsers may read it differently.
    """
    loader = _untrusted_loader(text)
    try:
        while loader.check_node():
            yield _construct(loader, loader.get_node())
    finally:
        loader.dispose()


def _untrusted_loader(text: str | bytes) -> Any:
    content = text.encode() if isinstance(text, str) else text
    # Anchors, aliases and tags begin with these, which few documents have anywhere.
    if any(character in content for character in b"&*!"):
        for event in yaml.parse(content, Loader=_LOADER):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise yaml.YAMLError("anchors and aliases are not allowed")
            if getattr(event, "tag", None):
                raise yaml.YAMLError("tags are not allowed")
    return _LOADER(content)


def _construct(loader: Any, node: yaml.Node | None) -> Any:
    _check_keys(node)
    return None if node is None else loader.construct_document(node)


def _check_keys(node: yaml.Node | None) -> None:
    if isinstance(node, yaml.SequenceNode):
        for item in cast("list[yaml.Node]", node.value):
            _check_keys(item)
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            if key.tag != "tag:yaml.org,2002:str" or key.value == "<<":
                raise yaml.YAMLError("merge keys, and keys that are not strings, are not allowed")
            if key.value in keys:
                raise yaml.YAMLError("a key appears twice")
            keys.add(key.value)
            _check_keys(value)
