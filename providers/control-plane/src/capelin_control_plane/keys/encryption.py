"""Encryption at rest: its keys, and the stages in which API servers change to others. Pure.

API servers do not change at the same moment. So a key is first added to those that they read with,
then becomes the one that they write with. Then all stored objects are rewritten, and only then the
old key is dropped. A stage begins when every API server runs with the keyring of the last one.

An API server asks its KMS plugin every minute for the identifier of the key that it encrypts with.
If it changes, the API server writes with the new key at once, and reads older objects with the old
one.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import Any, Final, Literal

from capelin.provider import Blocked
from pydantic import TypeAdapter

from capelin_control_plane.api import Encryption, EncryptionProvider
from capelin_control_plane.api.policy import Plugins
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.desired.component_files import (
    IDENTITY,
    OFF,
    EncryptionFile,
    EncryptionFiles,
)
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import Observed
from capelin_control_plane.desired.schedules import is_future, is_older

SETTLING: Final = timedelta(minutes=4)
"""After this time, no API server writes with an earlier key of its plugin. It would fail after 3
minutes without an answer of the plugin."""
_KEY_METRIC: Final = "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds"
_SAMPLE: Final = re.compile(rf"^{_KEY_METRIC}\{{([^}}\n]*)\}} (\S+)", re.MULTILINE)
_LABELS: Final = re.compile(r'\b(\w+)="([^"]*)"')
KEY_BYTES: Final = 32
NAME_BYTES: Final = 4
_MOST_KEYS: Final = 4
"""The keys of a resource. After more changes of mind, objects are rewritten before the next."""

Ring = tuple[str, ...]
"""Names of keys. API servers write with the first one, and read with all."""
_PLAIN: Final[Ring] = (IDENTITY,)
Stage = Literal["Distributing", "Promoting", "Rewriting", "Dropping"]


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


@dataclass(frozen=True, slots=True)
class Key:
    """A key. Its name is random, and never used again."""

    name: str
    provider: EncryptionProvider
    secret: str = field(repr=False)
    """In base64. Empty if a plugin has the key."""
    created: datetime
    generated: bool
    """Whether the provider has generated it."""
    plugin: str | None = None
    """The KMS plugin that has the key."""
    plugin_key: str | None = None
    """The plugin's key that all objects of this key are stored with. None if it is not known."""


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys of a control plane, and the use of each by API servers."""

    keys: Mapping[str, Key] = field(default_factory=dict[str, Key])
    rings: Mapping[str, Ring] = field(default_factory=dict[str, Ring])
    """By resource. One without a ring is stored as it is."""
    previous: Mapping[str, Ring] | None = None
    """The rings that some API servers may still have. None if all have the present ones."""
    rewritten: tuple[str, ...] = ()
    """The resources whose objects are all stored with the first key of their ring."""

    def ring(self, resource: str) -> Ring:
        """The ring of a resource."""
        return self.rings.get(resource, _PLAIN)

    @property
    def is_empty(self) -> bool:
        """Whether no API server needs a key."""
        return not (self.rings or self.previous)

    @property
    def is_changing(self) -> bool:
        """Whether stored objects can have different keys."""
        return self.previous is not None or any(len(ring) > 1 for ring in self.rings.values())

    @property
    def name(self) -> str:
        """The name of the present configuration."""
        return _name(self.rings)

    @property
    def names(self) -> frozenset[str]:
        """The names of the configurations that API servers may have."""
        return frozenset(_name(rings) for rings in (self.rings, self.previous) if rings is not None)

    def files(self, plugins: Plugins = ()) -> EncryptionFiles:
        """The configurations that API servers may start with now.

        Args:
            plugins: The KMS plugins that the administrator lists.

        Raises:
            Blocked: a plugin with a key is not one of them.
        """
        current, previous = (self._file(ring, plugins) for ring in (self.rings, self.previous))
        return EncryptionFiles(current, previous, self.is_changing, self.rings)

    def _file(self, rings: Mapping[str, Ring] | None, plugins: Plugins) -> EncryptionFile | None:
        if not rings:
            return None
        sockets = {
            name: socket_of(key.plugin, plugins)
            for name, key in self.keys.items()
            if key.plugin is not None and any(name in ring for ring in rings.values())
        }
        resources = [
            {
                "resources": [resource],
                "providers": [self._provider(name, resource, sockets) for name in ring],
            }
            for resource, ring in sorted(rings.items())
        ]
        content = {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "EncryptionConfiguration",
            "resources": resources,
        }
        used = frozenset(sockets.values())
        return EncryptionFile(_name(rings), json.dumps(content).encode(), used)

    def _provider(
        self, name: str, resource: str, sockets: Mapping[str, PurePosixPath]
    ) -> Mapping[str, Any]:
        if name == IDENTITY:
            return {IDENTITY: {}}
        if name in sockets:
            return kms_provider(provider_name(name, resource), sockets[name])
        key = self.keys[name]
        return {key.provider: {"keys": [{"name": key.name, "secret": key.secret}]}}


@dataclass(frozen=True, slots=True)
class Goal:
    """The desired encryption."""

    resources: frozenset[str] = frozenset()
    key: Key | None = None
    """The key of these resources. Others are not encrypted."""
    plugin_key: str | None = None
    """The key that its plugin now has. None if it is not known, or no plugin has the key."""

    def target(self, resource: str) -> str:
        """The only key of a resource's ring in the end."""
        return self.key.name if self.key and resource in self.resources else IDENTITY


_KEYRING = TypeAdapter(Keyring)


def read_keyring(data: bytes) -> Keyring:
    """The keyring of a Secret.

    Raises:
        ValueError: it is damaged. The message contains no key.
    """
    try:
        keyring = _KEYRING.validate_json(data)
    except ValueError:
        raise ValueError("it is not a keyring") from None
    rings = [*keyring.rings.values(), *(keyring.previous or {}).values()]
    if any(not ring or set(ring) - {IDENTITY, *keyring.keys} for ring in rings):
        raise ValueError("it lacks a key that it names")
    return keyring


def write_keyring(keyring: Keyring) -> bytes:
    return _KEYRING.dump_json(keyring)


def desired_goal(
    encryption: Encryption | None,
    keyring: Keyring,
    *,
    given: bytes | None,
    rotate_before: datetime | None,
    now: datetime,
    random: bytes,
    plugin_key: tuple[str, str] | None = None,
) -> Goal:
    """The desired encryption, with a key of the keyring or a new one.

    Args:
        encryption: The settings.
        keyring: The present keys.
        given: The key of the user. None if the provider generates keys.
        rotate_before: Generated keys from before this moment are replaced.
        now: The present.
        random: Random bytes for a new name and a new key.
        plugin_key: The name of a key, and the plugin's key that all API servers use for it.
    """
    if encryption is None:
        return Goal()
    used = {name for ring in keyring.rings.values() for name in ring}
    secret = None if given is None else base64.b64encode(given).decode()
    candidates = [
        key
        for name, key in keyring.keys.items()
        if name in used
        and (key.provider, key.plugin) == (encryption.provider, encryption.kms_plugin)
        and (key.generated if secret is None else key.secret == secret)
    ]
    # One from the future is the newest only until another one replaces it.
    key = max(candidates, key=lambda it: (not is_future(it.created, now), it.created), default=None)
    if key is not None and secret is None:
        due = rotation_due(encryption, key)
        is_old = rotate_before is not None and is_older(key.created, rotate_before, now)
        if is_old or (due is not None and due <= now):
            key = None
    if key is None:
        name, generated = random[:NAME_BYTES], random[NAME_BYTES:]
        if encryption.kms_plugin is not None:
            generated = b""
        key = Key(
            name=f"key-{name.hex()}",
            provider=encryption.provider,
            secret=secret or base64.b64encode(generated).decode(),
            created=now,
            generated=secret is None,
            plugin=encryption.kms_plugin,
        )
    observed = plugin_key[1] if plugin_key is not None and plugin_key[0] == key.name else None
    return Goal(frozenset(encryption.resources), key, observed)


def rotation_due(encryption: Encryption, key: Key) -> datetime | None:
    """When the schedule replaces a key."""
    if encryption.rotate_after_days is None or not key.generated:
        return None
    return key.created + timedelta(days=encryption.rotate_after_days)


def first_keyring(goal: Goal) -> Keyring:
    """The keyring of a control plane that has never run. It has no objects to rewrite."""
    if goal.key is None:
        return Keyring()
    return Keyring({goal.key.name: goal.key}, dict.fromkeys(goal.resources, (goal.key.name,)))


def next_keyring(keyring: Keyring, goal: Goal) -> Keyring:
    """The keyring of the next stage. The same one if nothing remains to be done but rewriting.

    Only if every API server runs with the present one.
    """
    rings = {
        resource: _advanced(keyring, goal, resource)
        for resource in sorted(goal.resources | keyring.rings.keys())
    }
    rings = {resource: ring for resource, ring in rings.items() if ring != _PLAIN}
    previous = None if rings == keyring.rings else keyring.rings
    keys = {**keyring.keys, **({goal.key.name: goal.key} if goal.key else {})}
    # A key that API servers may still read with stays.
    used = {name for ring in (*rings.values(), *(previous or {}).values()) for name in ring}
    return Keyring(
        keys={name: key for name, key in keys.items() if name in used},
        rings=rings,
        previous=previous,
    )


def to_rewrite(keyring: Keyring, goal: Goal) -> tuple[str, ...]:
    """The resources whose objects are to be rewritten, once all API servers write with one key."""
    if has_other_plugin_key(keyring, goal):
        return tuple(sorted(keyring.rings))
    return tuple(
        resource
        for resource, ring in sorted(keyring.rings.items())
        if len(ring) > 1
        and ring[0] == _target(ring, goal.target(resource))
        and resource not in keyring.rewritten
    )


def has_other_plugin_key(keyring: Keyring, goal: Goal) -> bool:
    """Whether only the key of the plugin has changed since objects were rewritten."""
    key = goal.key
    return (
        key is not None
        and goal.plugin_key is not None
        and keyring.rings == dict.fromkeys(goal.resources, (key.name,))
        and keyring.keys[key.name].plugin_key != goal.plugin_key
    )


def rewrote(keyring: Keyring, resources: Iterable[str], goal: Goal) -> Keyring:
    """The keyring after all objects of these resources were rewritten."""
    if goal.key is not None and has_other_plugin_key(keyring, goal):
        key = replace(keyring.keys[goal.key.name], plugin_key=goal.plugin_key)
        return replace(keyring, keys={**keyring.keys, key.name: key})
    return replace(keyring, rewritten=tuple(sorted({*keyring.rewritten, *resources})))


def restored_keyring(keyring: Keyring) -> Keyring:
    """The keyring after a restore: stored objects may have any of its keys."""
    keys = {name: replace(key, plugin_key=None) for name, key in keyring.keys.items()}
    return replace(keyring, keys=keys, rewritten=())


def taken_back(keyring: Keyring, goal: Goal) -> Keyring:
    """The keyring without new keys that nothing writes with yet, if the goal needs none of them.

    API servers need not be ready: they may never be, with a plugin that does not work.
    """
    previous = keyring.previous
    if previous is None or previous == keyring.rings:
        return keyring
    for resource in keyring.rings.keys() | previous.keys():
        before, now = previous.get(resource, _PLAIN), keyring.ring(resource)
        added = now[len(before) :]
        if now != (*before, *added) or goal.target(resource) in added:
            return keyring
    return replace(keyring, rings=previous, previous=keyring.rings)


def stage(keyring: Keyring, goal: Goal) -> Stage | None:
    """The stage of a change. None without a change."""
    if keyring.previous is not None:
        before, after = keyring.previous, keyring.rings
    else:
        before, after = keyring.rings, next_keyring(keyring, goal).rings
        if to_rewrite(keyring, goal):
            return "Rewriting"
    if before == after:
        return None
    pairs = [
        (len(before.get(resource, _PLAIN)), len(after.get(resource, _PLAIN)))
        for resource in before.keys() | after.keys()
    ]
    if any(later > earlier for earlier, later in pairs):
        return "Distributing"
    return "Dropping" if any(later < earlier for earlier, later in pairs) else "Promoting"


def used_plugin_key(keyring: Keyring) -> Key | None:
    """The newest key of a plugin that API servers may use."""
    used = {name for ring in keyring.rings.values() for name in ring}
    keys = [key for name, key in keyring.keys.items() if name in used and key.plugin is not None]
    return max(keys, key=lambda key: key.created, default=None)


def uses_keyring(desired: ControlPlane, observed: Observed) -> bool:
    """Whether every API server runs with the desired configuration, and no other one still ends."""
    servers = observed.of("kube-apiserver")
    return (
        len(servers) == desired.replicas > 0
        and all(server.current and server.ready for server in servers)
        and not observed.ending_servers
    )


def _advanced(keyring: Keyring, goal: Goal, resource: str) -> Ring:
    ring = keyring.ring(resource)
    target = _target(ring, goal.target(resource))
    if target not in ring:
        return (*ring, target)
    if ring[0] != target:
        return (target, *(name for name in ring if name != target))
    return (target,) if resource in keyring.rewritten else ring


def _target(ring: Ring, target: str) -> str:
    return target if target in ring or len(ring) < _MOST_KEYS else ring[0]


def _name(rings: Mapping[str, Ring]) -> str:
    """A name for the use of keys. Keys themselves have no part in it."""
    if not rings:
        return OFF
    return hashlib.sha256(json.dumps(rings, sort_keys=True).encode()).hexdigest()[:12]
