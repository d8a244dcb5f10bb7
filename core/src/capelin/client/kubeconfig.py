"""Reads and merges kubeconfigs, chooses a context like kubectl, and writes kubeconfigs."""

import base64
import binascii
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from capelin.client.errors import ConfigError
from capelin.client.server import ExecPlugin, Impersonation, PemSource, Server, User
from capelin.yaml import SAFE_DUMPER, read_untrusted_yaml, read_yaml

Context = tuple[Server, User, str]
"""The server, user and namespace of a context."""

_ONE_LINE = 1 << 30
_LONGEST = 64 << 10
"""Of an untrusted kubeconfig, in bytes."""
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A named entry, and the folder that its relative paths refer to."""

    value: Mapping[str, Any]
    folder: Path


@dataclass(slots=True)
class _Kubeconfig:
    where: str
    current: str = ""
    clusters: dict[str, _Entry] = field(default_factory=dict[str, _Entry])
    users: dict[str, _Entry] = field(default_factory=dict[str, _Entry])
    contexts: dict[str, _Entry] = field(default_factory=dict[str, _Entry])


def load(source: bytes | str | os.PathLike[str], context: str | None) -> Context:
    """Read one kubeconfig: a path, or its content as bytes."""
    if isinstance(source, bytes):
        return _choose(_parse(source, "the kubeconfig", Path.cwd()), context)
    return _choose(_read(Path(source)), context)


def load_list(listed: str, context: str | None) -> Context:
    """Read the files that `$KUBECONFIG` lists. Skips files that do not exist."""
    paths = [Path(part) for part in listed.split(os.pathsep) if part]
    files = [_read(path) for path in paths if path.exists()]
    if not files:
        raise ConfigError(f"KUBECONFIG is {listed}, and no such file exists")
    return _choose(_merge(files), context)


def load_untrusted(data: bytes, context: str | None) -> Context:
    """Read an untrusted kubeconfig. Rejects one that names programs or files of this machine."""
    if len(data) > _LONGEST:
        # Its parser takes seconds for a MiB.
        raise ConfigError(f"the kubeconfig has more than {_LONGEST >> 10} KiB")
    parsed = _parse(data, "the kubeconfig", Path("/"), is_trusted=False)
    if context is None and not parsed.current:
        # Other programs, Cluster API among them, do not fall back to the only context.
        raise ConfigError(f"the kubeconfig has no current-context: {_available(parsed.contexts)}")
    server, user, namespace = _choose(parsed, context)
    local = {
        "exec": user.exec is not None,
        "tokenFile": user.token_file is not None,
        "client-certificate": isinstance(user.certificate, Path),
        "client-key": isinstance(user.key, Path),
        "certificate-authority": isinstance(server.ca, Path),
    }
    for name in (name for name, is_used in local.items() if is_used):
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


def _parse(content: bytes, where: str, folder: Path, *, is_trusted: bool = True) -> _Kubeconfig:
    try:
        document: Any = read_yaml(content) if is_trusted else read_untrusted_yaml(content)
    except (yaml.YAMLError, ValueError, RecursionError):
        # The parser's own message quotes the line, which may contain a token.
        simple = "" if is_trusted else " without merge keys, anchors, tags and duplicate keys"
        raise ConfigError(f"{where} is not YAML{simple}") from None
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
    """Merge files. The first definition of an entry wins."""
    merged = _Kubeconfig("KUBECONFIG")
    for file in files:
        merged.current = merged.current or file.current
        merged.clusters = {**file.clusters, **merged.clusters}
        merged.users = {**file.users, **merged.users}
        merged.contexts = {**file.contexts, **merged.contexts}
    return merged


def _choose(kubeconfig: _Kubeconfig, context: str | None) -> Context:
    where = kubeconfig.where
    name = context or kubeconfig.current
    if not name and len(kubeconfig.contexts) == 1:
        name = next(iter(kubeconfig.contexts))
    if not name:
        raise ConfigError(f"{where} has no current-context: {_available(kubeconfig.contexts)}")
    chosen = _entry(kubeconfig.contexts, "context", name, where).value
    cluster_name = _text(chosen, "cluster", where)
    cluster = _entry(kubeconfig.clusters, "cluster", cluster_name, where)
    user_name = _text(chosen, "user", where)
    user = _entry(kubeconfig.users, "user", user_name, where) if user_name else None
    cluster_path = f'{where}: cluster "{cluster_name}"'
    server = _text(cluster.value, "server", cluster_path).rstrip("/")
    if not server:
        raise ConfigError(f"{cluster_path} has no server")
    return (
        Server(
            server,
            ca=_material(cluster, "certificate-authority", cluster_path),
            verify=cluster.value.get("insecure-skip-tls-verify") is not True,
            tls_server_name=_text(cluster.value, "tls-server-name", cluster_path) or None,
            proxy=_text(cluster.value, "proxy-url", cluster_path) or None,
        ),
        _user(user, f'{where}: user "{user_name}"') if user else User(),
        _text(chosen, "namespace", where) or "default",
    )


def _entry(entries: Mapping[str, _Entry], what: str, name: str, where: str) -> _Entry:
    if name not in entries:
        raise ConfigError(f'{where} has no {what} "{name}": {_available(entries)}')
    return entries[name]


def _available(entries: Mapping[str, _Entry]) -> str:
    return f"there are {', '.join(sorted(entries))}" if entries else "there are none"


def _user(entry: _Entry, where: str) -> User:
    value = entry.value
    if value.get("auth-provider"):
        raise ConfigError(
            f"{where} uses auth-provider, which Kubernetes removed: use exec, or a token"
        )
    token_file = _text(value, "tokenFile", where)
    return User(
        certificate=_material(entry, "client-certificate", where),
        key=_material(entry, "client-key", where),
        token=_text(value, "token", where) or None,
        token_file=entry.folder / token_file if token_file else None,
        username=_text(value, "username", where) or None,
        password=_text(value, "password", where) or None,
        exec=_exec(entry, where),
        impersonate=_impersonation(value, where),
    )


def _exec(entry: _Entry, where: str) -> ExecPlugin | None:
    plugin = entry.value.get("exec")
    if not plugin:
        return None
    if not isinstance(plugin, dict):
        raise ConfigError(f"{where}: exec is not a mapping")
    value = cast("dict[str, Any]", plugin)
    command = _text(value, "command", where)
    api_version = _text(value, "apiVersion", where)
    if not command:
        raise ConfigError(f"{where}: exec has no command")
    if api_version not in _EXEC_VERSIONS:
        raise ConfigError(f"{where}: exec needs the apiVersion {' or '.join(_EXEC_VERSIONS)}")
    if _text(value, "interactiveMode", where) == "Always":
        raise ConfigError(
            f"{where}: exec needs a terminal (interactiveMode: Always), and there is none"
        )
    # A bare name is looked up in PATH. A path is relative to the kubeconfig's folder.
    is_path = os.sep in command
    return ExecPlugin(
        api_version=api_version,
        command=str(entry.folder / command) if is_path else command,
        arguments=_texts(value, "args", where),
        environment=_environment(value, where),
        provide_cluster_info=value.get("provideClusterInfo") is True,
        install_hint=_text(value, "installHint", where),
    )


def _environment(value: Mapping[str, Any], where: str) -> dict[str, str]:
    listed: Any = value.get("env") or []
    try:
        return {item["name"] + "": item["value"] + "" for item in listed}
    except (TypeError, KeyError):
        raise ConfigError(f"{where}: exec's env is not a list of names and values") from None


def _impersonation(value: Mapping[str, Any], where: str) -> Impersonation | None:
    user = _text(value, "as", where)
    if not user:
        return None
    extra: Any = value.get("as-user-extra") or {}
    if not isinstance(extra, dict):
        raise ConfigError(f"{where}: as-user-extra is not a mapping")
    extra = cast("dict[str, Any]", extra)
    return Impersonation(
        user=user,
        uid=_text(value, "as-uid", where),
        groups=_texts(value, "as-groups", where),
        extra={key: _texts(extra, key, where) for key in extra},
    )


def _material(entry: _Entry, key: str, where: str) -> PemSource | None:
    """PEM data from the kubeconfig. It takes precedence over a file."""
    encoded = _text(entry.value, f"{key}-data", where)
    if encoded:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError(f"{where}: {key}-data is not base64") from None
    path = _text(entry.value, key, where)
    return entry.folder / path if path else None


def _texts(value: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    listed: Any = value.get(key) or []
    if not isinstance(listed, list):
        raise ConfigError(f"{where}: {key} is not a list")
    return tuple(str(item) for item in cast("list[Any]", listed))


def _text(value: Mapping[str, Any], key: str, where: str) -> str:
    text = value.get(key)
    if text is None:
        return ""
    if not isinstance(text, str):
        raise ConfigError(f"{where}: {key} is not text")
    return text


def flatten(
    server: Server, user: User, namespace: str | None, context: str, *, cluster: str, username: str
) -> bytes:
    """Write a kubeconfig with one server, one user and one context.

    Credentials in files stay in files, so that their renewal needs no change here.
    """
    names = {"cluster": cluster, "user": username, "namespace": namespace}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [{"name": cluster, "cluster": _cluster_entry(server)}],
        "users": [{"name": username, "user": _user_entry(user)}],
        "contexts": [{"name": context, "context": _without_none(names)}],
    }
    return yaml.dump(
        _quoted(content),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=False,
        width=_ONE_LINE,
        encoding="utf-8",
    )


class _Quoted(str):
    """Text in quotes, so that every parser reads it as text."""

    __slots__ = ()


class _Dumper(SAFE_DUMPER):
    pass


def _represent(_: yaml.SafeDumper, text: _Quoted) -> yaml.Node:
    return yaml.ScalarNode("tag:yaml.org,2002:str", str(text), style='"')


_Dumper.add_representer(_Quoted, _represent)


def _quoted(value: Any, *, keys: bool = False) -> Any:
    """Quote every text except the names of fields."""
    if isinstance(value, dict):
        return {
            # The keys of as-user-extra are values, not names of fields.
            (_Quoted(key) if keys else key): _quoted(item, keys=key == "as-user-extra")
            for key, item in cast("dict[str, Any]", value).items()
        }
    if isinstance(value, list):
        return [_quoted(item) for item in cast("list[Any]", value)]
    return _Quoted(value) if isinstance(value, str) else value


def _cluster_entry(server: Server) -> dict[str, Any]:
    return _without_none(
        {
            "server": server.address,
            **_pem_entry("certificate-authority", server.ca),
            "insecure-skip-tls-verify": None if server.verify else True,
            "tls-server-name": server.tls_server_name,
            "proxy-url": server.proxy,
        }
    )


def _user_entry(user: User) -> dict[str, Any]:
    return _without_none(
        {
            **_pem_entry("client-certificate", user.certificate),
            **_pem_entry("client-key", user.key),
            "token": user.token,
            "tokenFile": None if user.token_file is None else str(user.token_file.absolute()),
            "username": user.username,
            "password": user.password,
            "exec": None if user.exec is None else _exec_entry(user.exec),
            **({} if user.impersonate is None else _impersonation_entry(user.impersonate)),
        }
    )


def _exec_entry(plugin: ExecPlugin) -> dict[str, Any]:
    environment = plugin.environment.items()
    return {
        "apiVersion": plugin.api_version,
        "command": plugin.command,
        "args": list(plugin.arguments),
        "env": [{"name": name, "value": value} for name, value in environment],
        "provideClusterInfo": plugin.provide_cluster_info,
        "installHint": plugin.install_hint,
        # kubectl requires the field. This client never gives a program a terminal.
        "interactiveMode": "IfAvailable",
    }


def _impersonation_entry(other: Impersonation) -> dict[str, Any]:
    return {
        "as": other.user,
        "as-uid": other.uid or None,
        "as-groups": list(other.groups),
        "as-user-extra": {key: list(values) for key, values in other.extra.items()},
    }


def _pem_entry(name: str, material: PemSource | None) -> dict[str, Any]:
    match material:
        case None:
            return {}
        case Path():
            return {name: str(material.absolute())}
        case bytes():
            return {f"{name}-data": base64.b64encode(material).decode()}


def _without_none(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if value is not None}
