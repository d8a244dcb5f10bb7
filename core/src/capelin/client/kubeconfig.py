"""Reads kubeconfig files: several of them merged, one context chosen, as kubectl does it."""

import base64
import binascii
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from capelin.client.access import ExecPlugin, Impersonation, Material, Server, User
from capelin.client.errors import ConfigError
from capelin.yaml import read_yaml

Chosen = tuple[Server, User, str]
"""What a context comes down to: a server, a user, a namespace."""

_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A named entry, and the folder that its relative paths start from."""

    value: Mapping[str, Any]
    folder: Path


@dataclass(slots=True)
class _Kubeconfig:
    where: str
    current: str = ""
    clusters: dict[str, _Entry] = field(default_factory=dict[str, _Entry])
    users: dict[str, _Entry] = field(default_factory=dict[str, _Entry])
    contexts: dict[str, _Entry] = field(default_factory=dict[str, _Entry])


def load(source: bytes | str | os.PathLike[str], context: str | None) -> Chosen:
    """The chosen context of one kubeconfig: a path, or its content as bytes."""
    if isinstance(source, bytes):
        return _choose(_parse(source, "the kubeconfig", Path.cwd()), context)
    return _choose(_read(Path(source)), context)


def load_list(listed: str, context: str | None) -> Chosen:
    """The chosen context of the files that `$KUBECONFIG` lists; missing ones are passed over."""
    paths = [Path(part) for part in listed.split(os.pathsep) if part]
    found = [_read(path) for path in paths if path.exists()]
    if not found:
        raise ConfigError(f"KUBECONFIG is {listed}, and no such file exists")
    return _choose(_merge(found), context)


def load_untrusted(data: bytes, context: str | None) -> Chosen:
    """The chosen context of somebody else's kubeconfig, refused if it reaches into this machine."""
    server, user, namespace = _choose(_parse(data, "the kubeconfig", Path("/")), context)
    reaching = {
        "exec": user.exec is not None,
        "tokenFile": user.token_file is not None,
        "client-certificate": isinstance(user.certificate, Path),
        "client-key": isinstance(user.key, Path),
        "certificate-authority": isinstance(server.ca, Path),
    }
    for name in (name for name, there in reaching.items() if there):
        raise ConfigError(
            f"the kubeconfig uses {name}, which would run a program or read a file on this "
            f"machine: put the token, or the certificates as ...-data, into it"
        )
    return server, user, namespace


def _read(path: Path) -> _Kubeconfig:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"kubeconfig {path} cannot be read: {error.strerror}") from None
    return _parse(content, f"kubeconfig {path}", path.absolute().parent)


def _parse(content: bytes, where: str, folder: Path) -> _Kubeconfig:
    try:
        document: Any = read_yaml(content)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        # The parser's own message quotes the line, which may hold a token.
        raise ConfigError(f"{where} is not YAML") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{where} is not a kubeconfig: it has no clusters, users and contexts")
    root = cast("dict[str, Any]", document)
    return _Kubeconfig(
        where,
        _text(root, "current-context", where),
        _entries(root, "cluster", where, folder),
        _entries(root, "user", where, folder),
        _entries(root, "context", where, folder),
    )


def _entries(root: Mapping[str, Any], what: str, where: str, folder: Path) -> dict[str, _Entry]:
    listed: Any = root.get(f"{what}s") or []
    entries: dict[str, _Entry] = {}
    if not isinstance(listed, list):
        raise ConfigError(f"{where}: {what}s is not a list")
    for item in cast("list[Any]", listed):
        if not isinstance(item, dict) or not isinstance(name := _get(item, "name"), str):
            raise ConfigError(f"{where}: one of its {what}s has no name")
        value: Any = _get(item, what) or {}
        if not isinstance(value, dict):
            raise ConfigError(f'{where}: {what} "{name}" is not a mapping')
        entries.setdefault(name, _Entry(cast("dict[str, Any]", value), folder))
    return entries


def _get(item: Any, key: str) -> Any:
    return cast("dict[str, Any]", item).get(key)


def _merge(files: Iterable[_Kubeconfig]) -> _Kubeconfig:
    """All of them as one: whoever names an entry first wins."""
    merged = _Kubeconfig("KUBECONFIG")
    for file in files:
        merged.current = merged.current or file.current
        merged.clusters = {**file.clusters, **merged.clusters}
        merged.users = {**file.users, **merged.users}
        merged.contexts = {**file.contexts, **merged.contexts}
    return merged


def _choose(kubeconfig: _Kubeconfig, context: str | None) -> Chosen:
    where = kubeconfig.where
    name = context or kubeconfig.current
    if not name and len(kubeconfig.contexts) == 1:
        name = next(iter(kubeconfig.contexts))
    if not name:
        raise ConfigError(f"{where} has no current-context: {_there_are(kubeconfig.contexts)}")
    chosen = _named(kubeconfig.contexts, "context", name, where).value
    cluster_name = _text(chosen, "cluster", where)
    cluster = _named(kubeconfig.clusters, "cluster", cluster_name, where)
    user_name = _text(chosen, "user", where)
    user = _named(kubeconfig.users, "user", user_name, where) if user_name else None
    at = f'{where}: cluster "{cluster_name}"'
    server = _text(cluster.value, "server", at).rstrip("/")
    if not server:
        raise ConfigError(f"{at} has no server")
    return (
        Server(
            server,
            ca=_material(cluster, "certificate-authority", at),
            verify=cluster.value.get("insecure-skip-tls-verify") is not True,
            tls_server_name=_text(cluster.value, "tls-server-name", at) or None,
            proxy=_text(cluster.value, "proxy-url", at) or None,
        ),
        _user(user, f'{where}: user "{user_name}"') if user else User(),
        _text(chosen, "namespace", where) or "default",
    )


def _named(entries: Mapping[str, _Entry], what: str, name: str, where: str) -> _Entry:
    if name not in entries:
        raise ConfigError(f'{where} has no {what} "{name}": {_there_are(entries)}')
    return entries[name]


def _there_are(entries: Mapping[str, _Entry]) -> str:
    return f"there are {', '.join(sorted(entries))}" if entries else "there are none"


def _user(entry: _Entry, at: str) -> User:
    value = entry.value
    if value.get("auth-provider"):
        raise ConfigError(
            f"{at} uses auth-provider, which Kubernetes removed: use exec, or a token"
        )
    token_file = _text(value, "tokenFile", at)
    return User(
        certificate=_material(entry, "client-certificate", at),
        key=_material(entry, "client-key", at),
        token=_text(value, "token", at) or None,
        token_file=entry.folder / token_file if token_file else None,
        username=_text(value, "username", at) or None,
        password=_text(value, "password", at) or None,
        exec=_exec(entry, at),
        impersonate=_impersonation(value, at),
    )


def _exec(entry: _Entry, at: str) -> ExecPlugin | None:
    said = entry.value.get("exec")
    if not said:
        return None
    if not isinstance(said, dict):
        raise ConfigError(f"{at}: exec is not a mapping")
    value = cast("dict[str, Any]", said)
    command = _text(value, "command", at)
    api_version = _text(value, "apiVersion", at)
    if not command:
        raise ConfigError(f"{at}: exec has no command")
    if api_version not in _EXEC_VERSIONS:
        raise ConfigError(f"{at}: exec has to have an apiVersion of {' or '.join(_EXEC_VERSIONS)}")
    if _text(value, "interactiveMode", at) == "Always":
        raise ConfigError(f"{at}: exec wants a terminal to ask questions on, and here is none")
    # A bare name is looked up in PATH; anything with a slash starts from the file's folder.
    beside = os.sep in command
    return ExecPlugin(
        api_version=api_version,
        command=str(entry.folder / command) if beside else command,
        arguments=_texts(value, "args", at),
        environment=_environment(value, at),
        provide_cluster_info=value.get("provideClusterInfo") is True,
        install_hint=_text(value, "installHint", at),
    )


def _environment(value: Mapping[str, Any], at: str) -> dict[str, str]:
    listed: Any = value.get("env") or []
    try:
        return {item["name"] + "": item["value"] + "" for item in listed}
    except (TypeError, KeyError):
        raise ConfigError(f"{at}: exec's env is not a list of names and values") from None


def _impersonation(value: Mapping[str, Any], at: str) -> Impersonation | None:
    user = _text(value, "as", at)
    if not user:
        return None
    extra: Any = value.get("as-user-extra") or {}
    if not isinstance(extra, dict):
        raise ConfigError(f"{at}: as-user-extra is not a mapping")
    extra = cast("dict[str, Any]", extra)
    return Impersonation(
        user=user,
        uid=_text(value, "as-uid", at),
        groups=_texts(value, "as-groups", at),
        extra={key: _texts(extra, key, at) for key in extra},
    )


def _material(entry: _Entry, key: str, at: str) -> Material | None:
    """PEM data in the kubeconfig, which goes before the file that it may name as well."""
    encoded = _text(entry.value, f"{key}-data", at)
    if encoded:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError(f"{at}: {key}-data is not base64") from None
    path = _text(entry.value, key, at)
    return entry.folder / path if path else None


def _texts(value: Mapping[str, Any], key: str, at: str) -> tuple[str, ...]:
    listed: Any = value.get(key) or []
    if not isinstance(listed, list):
        raise ConfigError(f"{at}: {key} is not a list")
    return tuple(str(one) for one in cast("list[Any]", listed))


def _text(value: Mapping[str, Any], key: str, at: str) -> str:
    said = value.get(key)
    if said is None:
        return ""
    if not isinstance(said, str):
        raise ConfigError(f"{at}: {key} is not text")
    return said
