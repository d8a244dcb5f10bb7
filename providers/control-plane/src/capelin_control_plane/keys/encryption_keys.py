"""The Secret with the keys of encryption at rest, and the key of a user."""

import base64
import os
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from capelin.api.core import Secret
from capelin.client import Client
from capelin.contract import KEYRING_KEY, encryption_secret, secret_name
from capelin.provider import Blocked

from capelin_control_plane.api import CapelinControlPlane, SecretKey, Status
from capelin_control_plane.api.policy import Plugins
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.desired.component_files import EncryptionFiles
from capelin_control_plane.desired.control_plane import annotated_moment
from capelin_control_plane.keys.encryption import (
    KEY_BYTES,
    NAME_BYTES,
    Goal,
    Keyring,
    desired_goal,
    first_keyring,
    read_keyring,
    rotation_due,
    socket_of,
    write_keyring,
)
from capelin_control_plane.keys.secrets import CREATED_ANNOTATION, find_secret

ENCRYPTION_ANNOTATION = "controlplane.cluster.x-k8s.io/capelin-encryption"
"""Names the configuration of the newest API servers. It outlives the Secret and a move."""
ROTATE_ANNOTATION = "controlplane.cluster.x-k8s.io/rotate-encryption-key-before"
"""Its value is a moment. A key that the provider generated before it is replaced."""


@dataclass(frozen=True, slots=True)
class EncryptionKeys:
    """The keys of a control plane, and what they are for."""

    keyring: Keyring
    goal: Goal | None
    """None if the key of the user is not usable: then nothing changes."""
    cluster: str
    version: str | None = None
    """The resource version of the Secret. None if it does not exist yet."""
    problem: Blocked | None = None
    next: datetime | None = None
    """When a key is to be replaced."""
    plugins: Plugins = ()
    """The KMS plugins that the administrator lists."""

    @property
    def files(self) -> EncryptionFiles:
        """The configurations of API servers.

        Raises:
            Blocked: the administrator does not list the plugin of a key any more.
        """
        return self.keyring.files(self.plugins)

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations that the control plane needs before an API server uses the keys."""
        return {} if self.keyring.is_empty else {ENCRYPTION_ANNOTATION: self.keyring.name}


async def find_encryption_keys(
    client: Client,
    obj: CapelinControlPlane,
    cluster: str,
    now: datetime,
    *,
    is_new: bool,
    plugins: Plugins = (),
    plugin_key: tuple[str, str] | None = None,
) -> EncryptionKeys | None:
    """The keys of a control plane. None if nothing is or shall be encrypted.

    Args:
        client: The client of the management cluster.
        obj: The control plane.
        cluster: The name of its Cluster.
        now: The present.
        is_new: Whether nothing of it has ever been started. Then it starts with encryption.
        plugins: The KMS plugins that the administrator lists.
        plugin_key: The name of a key, and the plugin's key that all API servers use for it.

    Raises:
        Blocked: keys in use are missing, or a new control plane has no usable key.
    """
    settings = obj.spec.api_server.encryption
    used = obj.metadata.annotations.get(ENCRYPTION_ANNOTATION)
    # Users can remove the annotation, and stored objects still need the keys.
    was_used = used is not None or (obj.status or Status()).encryption is not None
    if settings is None and not (was_used or is_new):
        return None
    name = secret_name(cluster, "encryption")
    secret = await find_secret(client if is_new else client.cached, obj, name, is_new=is_new)
    keyring = _checked(name, secret, used)
    if settings is None and used is None and keyring.is_empty:
        return None
    rotate_before = annotated_moment(obj, ROTATE_ANNOTATION)
    given, problem = None, None
    try:
        if settings is not None and settings.keys_from is not None:
            given = await _given_key(client, settings.keys_from, obj.namespace)
        if settings is not None and settings.kms_plugin is not None:
            _check_plugin(settings.kms_plugin, plugins, obj)
    except Blocked as blocked:
        if is_new:
            raise
        problem = blocked
    goal = None
    if problem is None:
        goal = desired_goal(
            settings,
            keyring,
            given=given,
            rotate_before=rotate_before if rotate_before and rotate_before <= now else None,
            now=now,
            random=os.urandom(NAME_BYTES + KEY_BYTES),
            plugin_key=plugin_key,
        )
    moments = [rotate_before]
    if settings is not None and goal is not None and goal.key is not None:
        moments.append(rotation_due(settings, goal.key))
    keys = EncryptionKeys(
        keyring,
        goal,
        cluster,
        secret.metadata.resource_version if secret else None,
        problem,
        min((moment for moment in moments if moment and moment > now), default=None),
        plugins,
    )
    if is_new and secret is None and goal is not None:
        return await store(client, obj, keys, first_keyring(goal))
    return keys


async def store(
    client: Client, obj: CapelinControlPlane, keys: EncryptionKeys, keyring: Keyring
) -> EncryptionKeys:
    """Write a keyring in the place of the one that was read.

    Raises:
        ApiError: another client has changed the Secret since.
    """
    content = write_keyring(keyring)
    if keys.version is None:
        secret = encryption_secret(content, cluster=keys.cluster, owner=obj)
        secret.metadata.annotations = {CREATED_ANNOTATION: ""}
        written = await client.create(secret)
    else:
        patch = {
            "metadata": {"resourceVersion": keys.version},
            "data": {KEYRING_KEY: base64.b64encode(content).decode()},
        }
        name = secret_name(keys.cluster, "encryption")
        written = await client.patch(Secret, name, obj.namespace, patch)
    return replace(keys, keyring=keyring, version=written.metadata.resource_version, problem=None)


def _checked(name: str, secret: Secret | None, used: str | None) -> Keyring:
    """The keyring of a Secret, unless API servers use another one."""
    hint = "restore the newest one from a backup"
    keyring = Keyring()
    if secret is not None:
        try:
            keyring = read_keyring(secret.data.get(KEYRING_KEY, b""))
        except ValueError as error:
            message = f"Secret {name}: {error}"
            raise Blocked(Reason.ENCRYPTION_KEYS_MISSING, message, hint) from error
    if used is None or used in keyring.names:
        return keyring
    message = (
        f"Secret {name} has the keys of stored objects, and does not exist"
        if secret is None
        else f"Secret {name} has other keys than the API servers: it is older"
    )
    raise Blocked(Reason.ENCRYPTION_KEYS_MISSING, message, hint)


def _check_plugin(plugin: str, plugins: Plugins, obj: CapelinControlPlane) -> None:
    """Check that API servers can find the socket of a plugin, where the provider can look."""
    socket = socket_of(plugin, plugins)
    if obj.spec.backend == "Processes" and not Path(socket).is_socket():
        raise Blocked(
            Reason.KMS_PLUGIN_NOT_HEALTHY,
            f"the socket of the KMS plugin {plugin} does not exist on the provider's machine",
            "ask its administrator to start the plugin",
        )


async def _given_key(client: Client, source: SecretKey, namespace: str | None) -> bytes:
    secret = await client.find(Secret, source.name, namespace)
    key = None if secret is None else secret.data.get(source.key)
    field = "spec.apiServer.encryption.keysFrom"
    if key is None:
        raise Blocked(
            Reason.ENCRYPTION_KEY_NOT_USABLE,
            f"{field}: no Secret {source.name} with the entry {source.key} exists in the namespace",
            f"create it with {KEY_BYTES} random bytes",
        )
    if len(key) != KEY_BYTES:
        raise Blocked(
            Reason.ENCRYPTION_KEY_NOT_USABLE,
            f"{field}: the entry {source.key} of Secret {source.name} has not exactly {KEY_BYTES}"
            " bytes",
            f"write {KEY_BYTES} random bytes",
        )
    return key
