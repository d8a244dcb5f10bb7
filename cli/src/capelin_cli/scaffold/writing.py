"""Filling in the names and writing the files."""

import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import distribution, version
from importlib.resources import files
from importlib.resources.abc import Traversable
from keyword import iskeyword
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import yaml
from capelin.errors import InvalidInputError
from capelin_embedded.binaries import DEFAULT_KUBERNETES

_TAKEN = sys.stdlib_module_names | {"capelin", "tests"}
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?")


Template = Literal["extension", "provider"]

_ARTICLES: dict[Template, str] = {"extension": "an extension", "provider": "a provider"}


def write_project(
    template: Template, name: str, folder: Path, *, find_links: str = "", index: str = ""
) -> list[Path]:
    """Write an extension or provider of this name into a new folder. Returns the written files.

    Args:
        template: What to write.
        name: Its name.
        folder: Where to write it.
        find_links: A folder or page with wheels of Capelin, if no index of Python packages has it.
        index: An index that has Capelin, besides the default one.
    """
    package = name.replace("-", "_")
    if not _NAME.fullmatch(name) or iskeyword(package):
        raise InvalidInputError(
            f"{name} cannot be the name of {_ARTICLES[template]}.",
            reason="It names a Python package, a Service and an ExtensionConfig.",
            hint="Use lower-case letters, digits and dashes, beginning with a letter, at most 50.",
        )
    if package in _TAKEN or yaml.safe_load(name) != name:
        raise InvalidInputError(
            f"{name} cannot be the name of {_ARTICLES[template]}.",
            reason="It means something else to Python or in YAML.",
            hint="Choose another, such as my-extension.",
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInputError(
            f"{folder} exists already.",
            reason="Nothing is written over what exists.",
            hint="Choose another folder with --folder, or remove it.",
        )
    names = {
        "name": name,
        "package": package,
        "kind": "".join(word.capitalize() for word in name.split("-")),
        "variable": package.upper(),
        "capelin": version("capelin"),
        "kubernetes": DEFAULT_KUBERNETES,
        "sources": package_sources(find_links=find_links, index=index),
    }
    written: list[Path] = []
    for path, text in _files(files("capelin_cli.scaffold") / template):
        target = folder / path.replace("PACKAGE", package).removesuffix(".txt")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_filled(text, names))
        written.append(target)
    return written


def package_sources(*, find_links: str = "", index: str = "") -> str:
    """Where uv finds Capelin's packages, for `pyproject.toml`: there where this one comes from.

    Empty for a Capelin from the default index.
    """
    text = distribution("capelin").read_text("direct_url.json")
    origin: dict[str, Any] = json.loads(text) if text else {}
    place = Path(unquote(urlsplit(str(origin.get("url", ""))).path))
    if find_links or index:
        return _settings(find_links, index)
    if "dir_info" in origin:
        return _checkout_sources(place.parent)
    if "archive_info" in origin and place.exists():
        return _settings(str(place.parent), "")
    return ""


def _settings(find_links: str, index: str) -> str:
    lines = ["\n# Capelin's packages come from here."]
    if find_links:
        place = find_links if "://" in find_links else Path(find_links).absolute()
        lines += ["[tool.uv]", f'find-links = ["{place}"]']
    if index:
        lines += ["[[tool.uv.index]]", f'url = "{index}"']
    return "".join(f"{line}\n" for line in lines)


def _checkout_sources(checkout: Path) -> str:
    folders = {
        "capelin": checkout / "cli",
        "capelin-core": checkout / "core",
        "capelin-embedded": checkout / "embedded",
        "capelin-release": checkout / "tools/release",
    }
    lines = [
        f'{name} = {{ path = "{folder}", editable = true }}\n' for name, folder in folders.items()
    ]
    comment = "# For Capelin from a checkout. A release needs no such lines."
    return f"\n{comment}\n[tool.uv.sources]\n{''.join(lines)}"


def _filled(text: str, names: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: names[found[1]], text)


def _files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, str]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".txt"):
            yield f"{prefix}{entry.name}", entry.read_text()
