"""Contexts in the user's own kubeconfig: merged into it, and taken out again."""

import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml
from capelin.api import Model
from capelin.errors import BusyError, InvalidInputError
from capelin_embedded.management import Environment
from capelin_embedded.processes import write_private
from pydantic import ValidationError

_LISTS: Final = ("clusters", "contexts", "users")
Kubeconfig = dict[str, Any]


class MergedContexts(Model):
    """The contexts that were merged into each file. `down` reads it."""

    files: dict[str, list[str]] = {}
    """The names of contexts, by the file that they are in."""


def user_kubeconfig(variables: Mapping[str, str] = os.environ) -> Path:
    """The file that kubectl would write to."""
    named = [part for part in variables.get("KUBECONFIG", "").split(os.pathsep) if part]
    return Path(named[0] if named else "~/.kube/config").expanduser().resolve()


def merged(config: Kubeconfig, additions: Iterable[Kubeconfig], current: str) -> Kubeconfig:
    """A kubeconfig with the entries of others, which replace those of the same names."""
    result: Kubeconfig = {"apiVersion": "v1", "kind": "Config", **config}
    for addition in additions:
        for key in _LISTS:
            names = {entry["name"] for entry in addition.get(key) or ()}
            kept = [entry for entry in result.get(key) or () if entry["name"] not in names]
            result[key] = [*kept, *(addition.get(key) or ())]
    return {**result, "current-context": current}


def without(config: Kubeconfig, names: Sequence[str]) -> Kubeconfig:
    """A kubeconfig without contexts, and without the clusters and users that only they use."""
    contexts: list[Any] = config.get("contexts") or []
    kept = [entry for entry in contexts if entry["name"] not in names]
    gone = [entry for entry in contexts if entry["name"] in names]
    result = {**config, "contexts": kept}
    for key, field in (("clusters", "cluster"), ("users", "user")):
        used = {entry["context"].get(field) for entry in kept}
        orphans = {entry["context"].get(field) for entry in gone} - used
        result[key] = [entry for entry in config.get(key) or () if entry["name"] not in orphans]
    if config.get("current-context") in names:
        result["current-context"] = ""
    return result


def merge_contexts(environment: Environment, files: Sequence[Path]) -> tuple[Path, list[str]]:
    """Put the contexts of kubeconfigs into the user's file. The first one becomes current."""
    target = user_kubeconfig()
    additions = [_read(path) for path in files]
    names = [str(addition["current-context"]) for addition in additions]
    # Recorded first: a context that is recorded and never merged does no harm.
    record = read_record(environment)
    known = record.files.get(str(target), [])
    record.files[str(target)] = sorted({*known, *names})
    write_private(_record(environment), record.model_dump_json(indent=2).encode())
    with _locked(target):
        before = _read(target) if target.exists() else {}
        _write(target, merged(before, additions, names[0]))
    return target, names


def remove_contexts(environment: Environment) -> list[Path]:
    """Remove the contexts of an environment from all files that have them. Returns these files."""
    changed: list[Path] = []
    for name, contexts in read_record(environment).files.items():
        path = Path(name)
        if not path.exists():
            continue
        with _locked(path):
            before = _read(path)
            after = without(before, contexts)
            if after != before:
                _write(path, after)
                changed.append(path)
    return changed


def read_record(environment: Environment) -> MergedContexts:
    """The merged contexts of an environment."""
    try:
        return MergedContexts.read_json(_record(environment).read_bytes())
    except (FileNotFoundError, ValidationError):
        return MergedContexts()


def _record(environment: Environment) -> Path:
    return environment.folder / "merged.json"


def _read(path: Path) -> Kubeconfig:
    try:
        content = yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, UnicodeDecodeError):
        content = path
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidInputError(
            f"{path} is not a kubeconfig.",
            reason="It is not YAML with contexts, clusters and users.",
            hint="Repair it, or name another file in KUBECONFIG.",
        )
    return content  # pyright: ignore[reportUnknownVariableType] - checked by the API server


def _write(path: Path, config: Kubeconfig) -> None:
    write_private(path, yaml.safe_dump(config, sort_keys=False).encode())


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Hold the lock file that kubectl takes when it writes."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = path.with_name(f"{path.name}.lock")
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise BusyError(
            f"Another program is changing {path}.",
            reason=f"{lock} exists.",
            hint="Try again. If no program uses it, remove that file.",
        ) from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
