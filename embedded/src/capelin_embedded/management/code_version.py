"""The version of a provider's code, so that `up` restarts a provider whose code has changed."""

import hashlib
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path


def code_digest(module: str) -> str:
    """A digest that changes with every file of a module's package, and of Capelin."""
    lines: list[str] = []
    for package in sorted({module.partition(".")[0], "capelin"}):
        for path in _sources(package):
            status = path.stat()
            lines.append(f"{path}\0{status.st_mtime_ns}\0{status.st_size}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _sources(package: str) -> Iterable[Path]:
    spec = find_spec(package)
    if spec is None:
        return []
    if spec.submodule_search_locations is None:
        return [Path(spec.origin)] if spec.origin else []
    return sorted(
        path for folder in spec.submodule_search_locations for path in Path(folder).rglob("*.py")
    )
