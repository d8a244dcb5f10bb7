"""Plugins of key management services (KMS v2) that an administrator lists. Pure.

An API server asks its plugin every minute for the identifier of the key that it encrypts with. If
it changes, the API server writes with the new key at once, and reads older objects with the old
one.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import Any, Final

from capelin.provider import Blocked

from capelin_control_plane.api.policy import Plugins
from capelin_control_plane.api.reasons import Reason

SETTLING: Final = timedelta(minutes=4)
"""After this time, no API server writes with an earlier key of its plugin. It would fail after 3
minutes without an answer of the plugin."""
_KEY_METRIC: Final = "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds"
_SAMPLE: Final = re.compile(rf"^{_KEY_METRIC}\{{([^}}\n]*)\}} (\S+)", re.MULTILINE)
_LABELS: Final = re.compile(r'\b(\w+)="([^"]*)"')


def socket_of(plugin: str, plugins: Plugins) -> PurePosixPath:
    """The socket of a plugin.

    Raises:
        Blocked: the administrator does not list it.
    """
    socket = next((other.socket for other in plugins if other.name == plugin), None)
    if socket is None:
        listed = f"it lists {', '.join(other.name for other in plugins) or 'none'}"
        raise Blocked(
            Reason.KMS_PLUGIN_NOT_LISTED,
            f"spec.apiServer.encryption: this provider does not list the KMS plugin {plugin}:"
            f" {listed}",
            f"ask its administrator for --kms-plugins={plugin}=SOCKET",
        )
    return socket


def kms_provider(name: str, socket: PurePosixPath) -> dict[str, Any]:
    """The entry of a plugin in the configuration of API servers, under a name of its own."""
    return {"kms": {"apiVersion": "v2", "name": name, "endpoint": f"unix://{socket}"}}


def provider_name(key: str, resource: str) -> str:
    """The name of a key's entry for a resource. API servers require another one for each entry."""
    return f"{key}-{resource}"


def plugin_key(metrics: str, key: str) -> str | None:
    """Identifies the plugin's key that an API server uses. None if it is not known.

    Args:
        metrics: The metrics of the API server.
        key: The name of a key in the keyring that the plugin has.
    """
    newest: dict[str, tuple[float, str]] = {}
    for sample in _SAMPLE.finditer(metrics):
        labels: dict[str, str] = dict(_LABELS.findall(sample[1]))
        name, digest = labels.get("provider_name", ""), labels.get("key_id_hash", "")
        if not name.startswith(provider_name(key, "")) or not digest:
            continue
        newest[name] = max(newest.get(name, (0.0, "")), (float(sample[2]), digest))
    digests = {digest for _, digest in newest.values()}
    return digests.pop() if len(digests) == 1 else None


@dataclass(frozen=True, slots=True)
class PluginKey:
    """The key of a plugin as API servers report it."""

    key: str
    """The name of the key in the keyring."""
    digest: str
    since: datetime

    def settled(self, now: datetime) -> str | None:
        """The plugin's key, if no API server writes with an earlier one."""
        return self.digest if now - self.since >= SETTLING else None


def observed_key(
    before: PluginKey | None, key: str, digest: str | None, now: datetime
) -> PluginKey | None:
    """The plugin's key after another observation."""
    if digest is None:
        return None
    if before is not None and (before.key, before.digest) == (key, digest):
        return before
    return PluginKey(key, digest, now)
