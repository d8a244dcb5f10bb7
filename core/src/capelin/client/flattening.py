"""Writes what was read from a kubeconfig as one of its own: one server, one user, one context."""

import base64
from pathlib import Path
from typing import Any, Final

import yaml

from capelin.client.access import ExecPlugin, Impersonation, Material, Server, User

_NAME: Final = "capelin"


def flattened(server: Server, user: User, namespace: str) -> bytes:
    """A kubeconfig that leads to the same server as the same user, wherever it lies.

    What was in files stays in files, so that those who renew them need not know of this one.
    """
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": _NAME,
        "clusters": [{"name": _NAME, "cluster": _cluster(server)}],
        "users": [{"name": _NAME, "user": _user(user)}],
        "contexts": [
            {
                "name": _NAME,
                "context": {"cluster": _NAME, "user": _NAME, "namespace": namespace},
            }
        ],
    }
    return yaml.safe_dump(content, sort_keys=False, encoding="utf-8")


def _cluster(server: Server) -> dict[str, Any]:
    return _said(
        {
            "server": server.address,
            **_material("certificate-authority", server.ca),
            "insecure-skip-tls-verify": None if server.verify else True,
            "tls-server-name": server.tls_server_name,
            "proxy-url": server.proxy,
        }
    )


def _user(user: User) -> dict[str, Any]:
    return _said(
        {
            **_material("client-certificate", user.certificate),
            **_material("client-key", user.key),
            "token": user.token,
            "tokenFile": None if user.token_file is None else str(user.token_file.absolute()),
            "username": user.username,
            "password": user.password,
            "exec": None if user.exec is None else _exec(user.exec),
            **({} if user.impersonate is None else _impersonation(user.impersonate)),
        }
    )


def _exec(plugin: ExecPlugin) -> dict[str, Any]:
    environment = plugin.environment.items()
    return {
        "apiVersion": plugin.api_version,
        "command": plugin.command,
        "args": list(plugin.arguments),
        "env": [{"name": name, "value": value} for name, value in environment],
        "provideClusterInfo": plugin.provide_cluster_info,
        "installHint": plugin.install_hint,
        # kubectl insists on one; ours never gives a program a terminal.
        "interactiveMode": "IfAvailable",
    }


def _impersonation(other: Impersonation) -> dict[str, Any]:
    return {
        "as": other.user,
        "as-uid": other.uid or None,
        "as-groups": list(other.groups),
        "as-user-extra": {key: list(values) for key, values in other.extra.items()},
    }


def _material(name: str, material: Material | None) -> dict[str, Any]:
    match material:
        case None:
            return {}
        case Path():
            return {name: str(material.absolute())}
        case bytes():
            return {f"{name}-data": base64.b64encode(material).decode()}


def _said(entries: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if value is not None}
