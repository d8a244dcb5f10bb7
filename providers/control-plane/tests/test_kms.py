"""KMS plugins: only listed ones are used, and objects are rewritten after their key changes."""

import asyncio
import json
import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from capelin.api.core import Secret
from capelin.client import ApiError, Config, NotFound, Server, Unreachable
from capelin.controller import Context, ObjectKey, Recorder
from capelin.provider import Blocked
from capelin.testing.fake_client import FakeClient
from capelin.testing.waiting import until
from capelin_control_plane.api import ApiServer, CapelinControlPlane, Encryption, Spec
from capelin_control_plane.api.policy import Plugin, read_plugins
from capelin_control_plane.desired.control_plane import InvalidSpecError
from capelin_control_plane.keys.encryption import (
    KEY_BYTES,
    NAME_BYTES,
    Goal,
    Key,
    Keyring,
    desired_goal,
    first_keyring,
    next_keyring,
    observed_key,
    plugin_key,
    read_keyring,
    restored_keyring,
    rewrote,
    stage,
    to_rewrite,
    write_keyring,
)
from capelin_control_plane.keys.encryption_keys import ENCRYPTION_ANNOTATION, find_encryption_keys
from capelin_control_plane.operations import encryption as encryption_tasks
from capelin_control_plane.operations.encryption import EncryptionReport, Encryptions, PluginChecks

from .pods.pod_objects import objects_of, on_pods
from .pods.pod_objects import settings as pod_settings

NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
RANDOM = bytes(range(NAME_BYTES + KEY_BYTES))
VAULT = Plugin("vault", PurePosixPath("/run/kms/vault/plugin.sock"))
WITH_VAULT = Encryption(provider="kms", kms_plugin="vault")
OLD, NEW = "sha256:aaaa", "sha256:bbbb"


def wanted(encryption: Encryption | None, keyring: Keyring, observed: str | None = None) -> Goal:
    name = next(iter(keyring.keys), "")
    return desired_goal(
        encryption,
        keyring,
        given=None,
        rotate_before=None,
        now=NOW,
        random=RANDOM,
        plugin_key=None if observed is None else (name, observed),
    )


def key(name: str) -> Key:
    return Key(name, "kms", "", NOW, generated=True, plugin="vault")


def test_an_option_lists_plugins() -> None:
    other = Plugin("cloud-2", PurePosixPath("/var/kms/cloud.sock"))
    text = "vault=/run/kms/vault/plugin.sock, cloud-2=/var/kms/cloud.sock"
    assert read_plugins(text) == (VAULT, other)
    assert read_plugins("") == ()


@pytest.mark.parametrize(
    "text",
    [
        "/run/kms/vault/plugin.sock",
        "vault",
        "vault=plugin.sock",
        "vault=/run/plugin.sock",
        "vault=/run/kms/../plugin.sock",
        "vault=/run/kms/plug in.sock",
        "vault=/run/kms/%2e/plugin.sock",
        f"vault=/run/kms/{'x' * 100}.sock",
        "Vault=/run/kms/plugin.sock",
        "vault=/run/kms/a.sock,vault=/run/kms/b.sock",
        "vault=/run/kms/a.sock,cloud=/run/kms/b.sock",
        "vault=/run/kms/a.sock,cloud=/run/kms/cloud/b.sock",
    ],
)
def test_only_sockets_in_a_folder_of_their_own_are_listed(text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        read_plugins(text)


def test_each_resource_has_an_entry_of_the_plugin_of_its_own() -> None:
    goal = Goal(frozenset({"secrets", "configmaps"}), key("key-1"))
    file = first_keyring(goal).files((VAULT,)).current
    assert file is not None
    assert file.sockets == {VAULT.socket}
    entries = json.loads(file.content)["resources"]
    providers = [provider["kms"] for entry in entries for provider in entry["providers"]]
    assert [provider["name"] for provider in providers] == ["key-1-configmaps", "key-1-secrets"]
    endpoint = "unix:///run/kms/vault/plugin.sock"
    assert all(provider["endpoint"] == endpoint for provider in providers)
    assert all(provider["apiVersion"] == "v2" for provider in providers)


def test_encryption_changes_to_a_plugin_and_back_in_the_same_stages() -> None:
    secretbox = wanted(Encryption(), Keyring())
    keyring = first_keyring(secretbox)
    goal = wanted(WITH_VAULT, keyring)
    assert goal.key is not None
    assert (goal.key.provider, goal.key.plugin, goal.key.secret) == ("kms", "vault", "")
    goal = replace(goal, key=replace(goal.key, name="key-kms"))
    stages = [stage(keyring, goal)]
    while stages[-1] is not None:
        following = next_keyring(keyring, goal)
        keyring = following if following != keyring else rewrote(keyring, ["secrets"], goal)
        keyring = read_keyring(write_keyring(keyring))
        stages.append(stage(keyring, goal))
    assert [*dict.fromkeys(stages)] == ["Distributing", "Promoting", "Rewriting", "Dropping", None]
    assert keyring.ring("secrets") == ("key-kms",)
    assert stage(keyring, wanted(Encryption(), keyring)) == "Distributing"
    other = Encryption(provider="kms", kms_plugin="cloud")
    assert stage(keyring, wanted(other, keyring)) == "Distributing"
    assert stage(keyring, wanted(WITH_VAULT, keyring)) is None


def test_another_key_of_the_plugin_rewrites_all_objects_and_restarts_nothing() -> None:
    keyring = first_keyring(Goal(frozenset({"secrets", "configmaps"}), key("key-1")))
    both = Encryption(provider="kms", kms_plugin="vault", resources=["secrets", "configmaps"])
    assert to_rewrite(keyring, wanted(both, keyring)) == ()
    for observed in (OLD, NEW):
        goal = wanted(both, keyring, observed)
        assert stage(keyring, goal) == "Rewriting"
        assert to_rewrite(keyring, goal) == ("configmaps", "secrets")
        assert next_keyring(keyring, goal) == keyring
        before, keyring = keyring, rewrote(keyring, ["configmaps", "secrets"], goal)
        assert keyring.name == before.name
        assert stage(keyring, goal) is None
        assert to_rewrite(keyring, goal) == ()
    # Objects of a backup may have the earlier key.
    restored = restored_keyring(read_keyring(write_keyring(keyring)))
    assert to_rewrite(restored, wanted(both, restored, NEW)) == ("configmaps", "secrets")


def metrics(**digests: tuple[str, float]) -> str:
    name = "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds"
    lines = [
        f'{name}{{apiserver_id_hash="sha256:e3b0",key_id_hash="{digest}",provider_name="'
        f'{provider.replace("_", "-")}"}} {moment}'
        for provider, (digest, moment) in digests.items()
    ]
    return "\n".join([f"# HELP {name} text", *lines, 'etcd_bookmark_counts{resource="x"} 1', ""])


def test_the_newest_key_in_the_metrics_counts() -> None:
    before = metrics(key_1_secrets=(OLD, 1.7e9), key_2_secrets=(NEW, 1.8e9))
    assert plugin_key(before, "key-1") == OLD
    assert plugin_key(before + metrics(key_1_secrets=(NEW, 1.9e9)), "key-1") == NEW
    assert plugin_key(before, "key") is None
    differ = metrics(key_1_secrets=(NEW, 1.9e9), key_1_configmaps=(OLD, 1.9e9))
    assert plugin_key(differ, "key-1") is None, "they change"
    assert plugin_key("", "key-1") is None


def test_a_key_counts_once_no_api_server_can_write_with_an_earlier_one() -> None:
    first = observed_key(None, "key-1", OLD, NOW)
    assert first is not None
    assert first.settled(NOW + timedelta(minutes=3)) is None
    assert first.settled(NOW + timedelta(minutes=4)) == OLD
    later = NOW + timedelta(minutes=5)
    assert observed_key(first, "key-1", OLD, later) == first
    changed = observed_key(first, "key-1", NEW, later)
    assert changed is not None
    assert changed.settled(later) is None
    assert observed_key(first, "key-1", None, later) is None


def control_plane(backend: Any = "Pods") -> CapelinControlPlane:
    api_server = ApiServer(encryption=WITH_VAULT)
    spec = Spec(version="v1.34.4", api_server=api_server, backend=backend)
    mine = CapelinControlPlane.of("one", "default", spec=spec)
    mine.metadata.uid = "1234"
    return mine


async def test_a_plugin_that_is_not_listed_is_not_used() -> None:
    client, mine = FakeClient(), control_plane()
    cloud = replace(VAULT, name="cloud")
    with pytest.raises(
        Blocked, match="does not list the KMS plugin vault: it lists cloud"
    ) as raised:
        await find_encryption_keys(client, mine, "one", NOW, is_new=True, plugins=(cloud,))
    assert raised.value.reason == "KMSPluginNotListed"
    keys = await find_encryption_keys(client, mine, "one", NOW, is_new=False)
    assert keys is not None
    assert (keys.goal, keys.problem and keys.problem.reason) == (None, "KMSPluginNotListed")
    # One in use that is not listed any more: nothing changes.
    keys = await find_encryption_keys(client, mine, "one", NOW, is_new=True, plugins=(VAULT,))
    assert keys is not None
    assert keys.files.current is not None
    keys = await find_encryption_keys(client, mine, "one", NOW, is_new=False)
    assert keys is not None
    with pytest.raises(Blocked, match="lists none"):
        _ = keys.files


async def test_on_processes_the_socket_has_to_exist(tmp_path: Path) -> None:
    client, mine = FakeClient(), control_plane("Processes")
    missing = Plugin("vault", PurePosixPath(tmp_path / "plugin.sock"))
    with pytest.raises(
        Blocked, match="the socket of the KMS plugin vault does not exist"
    ) as raised:
        await find_encryption_keys(client, mine, "one", NOW, is_new=True, plugins=(missing,))
    assert raised.value.reason == "KMSPluginNotHealthy"
    assert str(tmp_path) not in str(raised.value), "users do not learn paths of the machine"


def with_plugin() -> Any:
    keyring = first_keyring(Goal(frozenset({"secrets"}), key("key-1")))
    return replace(on_pods(), encryption=keyring.files((VAULT,)))


def test_pods_mount_the_folder_of_the_socket_read_only() -> None:
    def folders(desired: Any) -> list[Mapping[str, Any]]:
        pod = objects_of(desired).api_server.manifest["spec"]["template"]["spec"]
        mounts = [mount for each in pod["containers"] for mount in each["volumeMounts"]]
        return [
            {**volume["hostPath"], **mount}
            for volume in pod["volumes"]
            if "hostPath" in volume
            for mount in mounts
            if mount["name"] == volume["name"]
        ]

    (mounted,) = folders(with_plugin())
    assert mounted["path"] == mounted["mountPath"] == "/run/kms/vault"
    assert (mounted["type"], mounted["readOnly"]) == ("Directory", True)
    assert not folders(on_pods())


@pytest.mark.parametrize("path", ["/run/kms/vault", "/etc"])
def test_a_patch_can_add_no_folder_of_the_node(path: str) -> None:
    labels = {"metadata": {"labels": {"mine": "yes"}}}
    target = {"kind": "Deployment", "component": "kube-apiserver"}
    allowed = pod_settings(patches=[{"target": target, "merge": labels}])
    objects_of(replace(with_plugin(), pods=allowed))
    for name in ("mine", "kms-plugin-0"):
        volume = {"name": name, "hostPath": {"path": path, "type": ""}}
        merge = {"spec": {"template": {"spec": {"volumes": [volume]}}}}
        patched = pod_settings(patches=[{"target": target, "merge": merge}])
        with pytest.raises(InvalidSpecError, match="hostPath is not allowed"):
            objects_of(replace(with_plugin(), pods=patched))


class Workload(FakeClient):
    """A workload cluster whose API servers use a plugin."""

    def __init__(self) -> None:
        super().__init__()
        self.digest, self.health = OLD, 200
        self.name = ""

    async def request(self, method: str, path: str, **options: Any) -> Any:
        if self.health == 0:
            raise Unreachable("connection refused")
        if path == "/metrics":
            return metrics(**{f"{self.name.replace('-', '_')}_secrets": (self.digest, 1.8e9)})
        if path == "/readyz/kms-providers":
            if self.health == 404:
                raise NotFound(404, "NotFound", "no such check")
            if self.health != 200:
                raise ApiError(self.health, "InternalError", "the plugin failed")
            return "ok"
        return await super().request(method, path, **options)


class Scene:
    """A control plane with a plugin, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = NOW
        self.management, self.workload = FakeClient(), Workload()
        self.mine = control_plane()
        self.checks = PluginChecks(self.wake)
        self.encryptions = Encryptions(self.wake, self.checks)

        def workload(*_: Any, **__: Any) -> AbstractAsyncContextManager[FakeClient]:
            return nullcontext(self.workload)

        def now(_: Context) -> datetime:
            return self.now

        monkeypatch.setattr(Context, "now", now)
        monkeypatch.setattr(encryption_tasks, "Client", workload)

    def wake(self, _: ObjectKey) -> None:
        return

    async def reconcile(self, *, is_new: bool = False, restoring: bool = False) -> EncryptionReport:
        recorder = Recorder(self.management, "test", "test", now=lambda: self.now)
        ctx = Context(self.management, logging.getLogger(), recorder)
        identity = ObjectKey("default", "one")
        keys = await find_encryption_keys(
            self.management,
            self.mine,
            "one",
            self.now,
            is_new=is_new,
            plugins=(VAULT,),
            plugin_key=self.checks.settled_key(identity, self.now),
        )
        assert keys is not None
        self.workload.name = next(iter(keys.keyring.keys))
        self.mine.metadata.annotations[ENCRYPTION_ANNOTATION] = keys.keyring.name
        config = Config(Server("https://fake.invalid"))
        report = await self.encryptions.reconcile(
            ctx,
            self.mine,
            keys,
            lambda: config,
            waiting="x" if restoring else "",
            restoring=restoring,
        )
        await until(lambda: not self.checks.is_running(identity))
        return report

    async def after(self, minutes: int) -> EncryptionReport:
        """The report after this time, with a reconcile in each minute."""
        for _ in range(minutes):
            self.now += timedelta(minutes=1)
            await self.reconcile()
        return await self.reconcile()

    async def close(self) -> None:
        await self.encryptions.close()
        await self.checks.close()

    def rewrites(self) -> int:
        return sum(write.startswith("PATCH") for write in self.workload.writes)


async def test_objects_are_rewritten_after_the_plugin_has_another_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    await scene.workload.create(Secret.of("mine", "default"))
    await scene.reconcile(is_new=True)

    async def has(digest: str) -> bool:
        report = await scene.reconcile()
        return report.status is not None and report.status.plugin_key == digest

    await scene.after(4)
    await until(lambda: has(OLD))
    first = scene.rewrites()
    report = await scene.after(3)
    assert scene.rewrites() == first
    assert report.condition is not None
    assert (report.condition.status, report.condition.reason) == ("True", "EncryptionAtRest")
    assert report.next == scene.now + timedelta(minutes=1)

    scene.workload.digest = NEW
    await scene.after(4)
    assert scene.rewrites() == first, "an API server may not know the new key yet"
    await scene.after(1)
    await until(lambda: has(NEW))
    assert scene.rewrites() == first + 1

    await scene.reconcile(restoring=True)
    report = await scene.reconcile()
    assert report.status is not None
    assert report.status.plugin_key is None
    await until(lambda: has(NEW))
    assert scene.rewrites() == first + 2
    await scene.close()


async def test_a_plugin_that_fails_is_in_the_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    await scene.reconcile(is_new=True)
    for health, reason in ((404, "EncryptionAtRest"), (500, "KMSPluginNotHealthy")):
        scene.workload.health = health
        report = await scene.after(1)
        assert report.condition is not None
        assert (report.condition.status, report.condition.reason) == ("True", reason)
    assert report.next == scene.now + timedelta(seconds=10)
    scene.workload.health = 200
    scene.now += timedelta(seconds=10)
    await scene.reconcile()
    report = await scene.reconcile()
    assert report.condition is not None
    assert report.condition.reason == "EncryptionAtRest"

    # On pods, API servers that are not ready get no requests.
    scene.workload.health = 0
    report = await scene.after(1)
    assert report.condition is not None
    assert report.condition.reason == "KMSPluginNotHealthy"
    assert "no API server answers" in report.condition.message
    await asyncio.wait_for(scene.close(), 5)
