"""The stages of encryption at rest: no API server writes objects that another one cannot read."""

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from capelin_control_plane.api import Encryption, EncryptionProvider, SecretKey
from capelin_control_plane.backends.pods.pki_secret import files_of
from capelin_control_plane.backends.processes.components import renew_certificates
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.desired.component_files import IDENTITY, OFF
from capelin_control_plane.desired.control_plane import InvalidSpecError
from capelin_control_plane.desired.instances import InstanceStatus, Observed
from capelin_control_plane.keys.encryption import (
    KEY_BYTES,
    NAME_BYTES,
    Goal,
    Key,
    Keyring,
    desired_goal,
    first_keyring,
    next_keyring,
    read_keyring,
    restored_keyring,
    rewrote,
    stage,
    taken_back,
    to_rewrite,
    used_plugin_key,
    uses_keyring,
    write_keyring,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from .factories import components_of, desired_control_plane
from .pods.pod_objects import objects_of, on_pods
from .pods.pod_objects import settings as pod_settings
from .processes.rig import authorities

NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
RANDOM = bytes(range(NAME_BYTES + KEY_BYTES))
RESOURCES = ("configmaps", "secrets")
GOAL_RINGS = {"secrets": ("a",)}


def key(name: str, provider: EncryptionProvider = "secretbox") -> Key:
    secret = base64.b64encode(name.encode() * 32).decode()
    return Key(name, provider, secret, NOW, generated=True)


def goal(name: str | None, *resources: str) -> Goal:
    if name is None:
        return Goal()
    return Goal(frozenset(resources or ("secrets",)), key(name))


def settled_rings(keyring: Keyring, wanted: Goal) -> list[tuple[str, ...]]:
    """The rings of Secrets after each stage, with instant rollouts and rewrites."""
    rings = [keyring.ring("secrets")]
    for _ in range(12):
        pending = to_rewrite(keyring, wanted)
        following = next_keyring(keyring, wanted)
        if following == keyring and pending:
            following = rewrote(keyring, pending, wanted)
        if following == keyring:
            return rings
        keyring = following
        if keyring.ring("secrets") != rings[-1]:
            rings.append(keyring.ring("secrets"))
    raise AssertionError(rings)


def test_encryption_is_enabled_rotated_and_disabled_in_stages() -> None:
    off, first = (IDENTITY,), first_keyring(goal("a"))
    assert settled_rings(Keyring(), goal("a")) == [off, (IDENTITY, "a"), ("a", IDENTITY), ("a",)]
    assert settled_rings(first, goal("b")) == [("a",), ("a", "b"), ("b", "a"), ("b",)]
    assert settled_rings(first, goal(None)) == [("a",), ("a", IDENTITY), (IDENTITY, "a"), off]


def test_a_change_can_be_taken_back() -> None:
    begun = next_keyring(first_keyring(goal("a")), goal("b"))
    assert settled_rings(begun, goal("a"))[-1] == ("a",)


def test_a_key_is_not_dropped_before_a_rewrite_nor_before_all_api_servers_dropped_it() -> None:
    keyring, wanted = first_keyring(goal("a")), goal("b")
    keyring = next_keyring(next_keyring(keyring, wanted), wanted)
    assert next_keyring(keyring, wanted).rings == {"secrets": ("b", "a")}
    assert to_rewrite(keyring, wanted) == ("secrets",)
    dropped = next_keyring(rewrote(keyring, ["secrets"], wanted), wanted)
    assert dropped.rings == {"secrets": ("b",)}
    assert {*dropped.keys} == {"a", "b"}, "API servers that end may still need it"
    assert {*next_keyring(dropped, wanted).keys} == {"b"}


def test_each_stage_has_a_name() -> None:
    keyring, wanted, names = first_keyring(goal("a")), goal("b"), list[str | None]()
    while True:
        names.append(stage(keyring, wanted))
        pending = to_rewrite(keyring, wanted)
        following = next_keyring(keyring, wanted)
        if following == keyring and pending:
            following = rewrote(keyring, pending, wanted)
        if following == keyring:
            break
        keyring = following
    assert [name for name, after in pairwise(names) if name != after] == [
        "Distributing",
        "Promoting",
        "Rewriting",
        "Dropping",
    ]
    assert names[-1] is None


def test_a_stage_is_that_of_the_resource_that_changes() -> None:
    one, both = goal("a", "secrets"), goal("a", *RESOURCES)
    assert stage(first_keyring(one), both) == "Distributing"
    assert stage(first_keyring(both), both) is None


def test_repeated_changes_do_not_add_keys_without_end() -> None:
    keyring = first_keyring(goal("a"))
    for number in range(9):
        keyring = next_keyring(keyring, goal(f"key-{number}"))
    assert len(keyring.ring("secrets")) == 4
    assert settled_rings(keyring, goal("last"))[-1] == ("last",)


def test_a_full_ring_changes_to_a_key_that_it_has() -> None:
    ring = ("a", "b", "c", "d")
    keyring = Keyring({name: key(name) for name in ring}, {"secrets": ring})
    assert settled_rings(keyring, goal("d")) == [ring, ("d", "a", "b", "c"), ("d",)]


@pytest.mark.parametrize(
    ("rings", "previous", "changing"),
    [
        ({}, None, False),
        ({"secrets": ("a",)}, None, False),
        ({"configmaps": ("a",), "secrets": ("a", "b")}, None, True),
        # Some API servers may still run with the rings before.
        ({"secrets": ("a",)}, {}, True),
        ({}, {"secrets": ("a",)}, True),
    ],
)
def test_encryption_changes_until_all_api_servers_have_rings_of_one_key(
    rings: dict[str, tuple[str, ...]],
    previous: dict[str, tuple[str, ...]] | None,
    changing: bool,
) -> None:
    keyring = Keyring({name: key(name) for name in ("a", "b")}, rings, previous)
    assert keyring.files().changing is changing


def test_the_name_of_a_configuration_follows_from_the_use_of_keys() -> None:
    rings: dict[str, tuple[str, ...]] = {"configmaps": ("a",), "secrets": ("a", "b")}
    keys = {name: key(name) for name in ("a", "b")}
    keyring = Keyring(keys, rings)
    assert keyring.name == Keyring(keys, dict(reversed(rings.items()))).name
    assert keyring.name == Keyring({name: key(name, "aesgcm") for name in keys}, rings).name
    others: list[dict[str, tuple[str, ...]]] = [
        {},
        {"secrets": ("a", "b")},
        {**rings, "secrets": ("b", "a")},
    ]
    names = [keyring.name, *(Keyring(keys, other).name for other in others)]
    assert len({*names}) == 4
    assert names[1] == OFF
    assert keyring.names == {keyring.name}
    assert replace(keyring, previous={}).names == {keyring.name, OFF}


@pytest.mark.parametrize(
    ("rings", "previous", "is_empty"),
    [({}, None, True), ({}, {}, True), (GOAL_RINGS, None, False), ({}, GOAL_RINGS, False)],
)
def test_a_keyring_is_empty_when_no_api_server_needs_a_key(
    rings: dict[str, tuple[str, ...]],
    previous: dict[str, tuple[str, ...]] | None,
    is_empty: bool,
) -> None:
    assert Keyring({"a": key("a")}, rings, previous).is_empty is is_empty


def test_only_the_resources_of_a_goal_are_encrypted() -> None:
    assert goal("a", "secrets").target("secrets") == "a"
    assert goal("a", "secrets").target("configmaps") == IDENTITY
    assert Goal(frozenset({"secrets"})).target("secrets") == IDENTITY


def test_the_newest_plugin_key_in_a_ring_is_the_one_in_use() -> None:
    first = replace(key("first"), plugin="vault")
    second = replace(first, name="second", created=NOW + timedelta(days=1))
    others = (
        replace(second, name="unused", created=NOW + timedelta(days=2)),
        replace(key("own"), created=NOW + timedelta(days=3)),
    )
    keys = {it.name: it for it in (first, second, *others)}
    rings = {"configmaps": ("first",), "secrets": ("first", "second", "own")}
    assert used_plugin_key(Keyring(keys, rings)) == second
    assert used_plugin_key(Keyring(keys, {"secrets": ("own",)})) is None


class Cluster(RuleBasedStateMachine):
    """API servers with configurations, stored objects, and providers that are killed."""

    def __init__(self) -> None:
        super().__init__()
        self.secret = Keyring()
        self.goal = Goal()
        self.servers = [Keyring(), Keyring()]
        self.stored: dict[tuple[str, int], str] = {}

    def is_settled(self) -> bool:
        return all(server.name == self.secret.name for server in self.servers)

    def restarted(self) -> Keyring:
        """The configuration of an API server that starts now."""
        return read_keyring(write_keyring(self.secret))

    @rule(name=st.sampled_from([None, "a", "b", "c"]), only=st.booleans())
    def changes_its_mind(self, name: str | None, only: bool) -> None:
        self.goal = goal(name, *(RESOURCES[1:] if only else RESOURCES))

    @rule(index=st.integers(0, 5), resource=st.sampled_from(RESOURCES), name=st.integers(0, 4))
    def write(self, index: int, resource: str, name: int) -> None:
        server = self.servers[index % len(self.servers)]
        self.stored[resource, name] = server.ring(resource)[0]

    @precondition(lambda self: len(self.servers) < 4)
    @rule()
    def start_a_new_api_server(self) -> None:
        self.servers.append(self.restarted())

    @precondition(lambda self: len(self.servers) > 1)
    @rule()
    def stop_the_oldest_api_server(self) -> None:
        self.servers.pop(0)

    @rule()
    def take_the_next_stage(self) -> None:
        if not self.is_settled():
            return
        self.secret = next_keyring(self.secret, self.goal)

    @rule(count=st.integers(0, 20))
    def rewrite_some_objects_and_be_killed_or_finish(self, count: int) -> None:
        pending = to_rewrite(self.secret, self.goal)
        if not self.is_settled() or not pending:
            return
        due = [entry for entry in sorted(self.stored) if entry[0] in pending]
        for entry in due[:count]:
            self.stored[entry] = self.servers[-1].ring(entry[0])[0]
        if count >= len(due):
            self.secret = rewrote(self.secret, pending, self.goal)

    @invariant()
    def every_api_server_reads_every_stored_object_and_all_that_others_write(self) -> None:
        for reader in [*self.servers, self.restarted()]:
            for (resource, _), name in self.stored.items():
                assert name in reader.ring(resource)
            for writer in [*self.servers, self.restarted()]:
                for resource in RESOURCES:
                    assert writer.ring(resource)[0] in reader.ring(resource)

    @invariant()
    def files_of_all_api_servers_exist(self) -> None:
        assert {server.name for server in self.servers} <= self.secret.names

    def teardown(self) -> None:
        """From every state, the goal is reached."""
        for _ in range(40):
            self.servers = [self.restarted(), self.restarted()]
            self.rewrite_some_objects_and_be_killed_or_finish(100)
            self.take_the_next_stage()
            self.every_api_server_reads_every_stored_object_and_all_that_others_write()
        for resource in RESOURCES:
            assert self.secret.ring(resource) == (self.goal.target(resource),)
        assert stage(self.secret, self.goal) is None
        assert {*self.secret.keys} == {self.goal.target(r) for r in RESOURCES} - {IDENTITY}


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_a_new_key_is_taken_back_until_something_writes_with_it() -> None:
    first = first_keyring(goal("a"))
    distributing = next_keyring(first, goal("b"))
    back = taken_back(distributing, goal("a"))
    assert (back.ring("secrets"), back.name) == (("a",), first.name)
    assert back.names == distributing.names, "some API servers may still have it"
    assert taken_back(back, goal("a")) == back
    settled = next_keyring(back, goal("a"))
    assert (settled.previous, {*settled.keys}) == (None, {"a"})
    assert taken_back(distributing, goal("b")) == distributing
    assert taken_back(first, goal("a")) == first
    promoting = next_keyring(next_keyring(distributing, goal("b")), goal("b"))
    assert taken_back(promoting, goal("a")) == promoting
    enabling = next_keyring(Keyring(), goal("a"))
    assert not taken_back(enabling, Goal()).rings


def test_after_a_restore_all_objects_are_rewritten_again() -> None:
    keyring = Keyring(
        {"a": key("a"), "b": key("b")}, {"secrets": ("b", "a")}, rewritten=("secrets",)
    )
    assert to_rewrite(keyring, goal("b")) == ()
    restored = restored_keyring(keyring)
    assert to_rewrite(restored, goal("b")) == ("secrets",)
    assert next_keyring(restored, goal("b")).ring("secrets") == ("b", "a")


def test_the_configuration_has_every_key_in_order() -> None:
    keyring = next_keyring(
        first_keyring(goal("a")), Goal(frozenset({"secrets"}), key("b", "aesgcm"))
    )
    file = keyring.files().current
    assert file is not None
    providers = json.loads(file.content)["resources"][0]["providers"]
    assert [[*provider] for provider in providers] == [["secretbox"], ["aesgcm"]]
    assert providers[1]["aesgcm"]["keys"][0]["name"] == "b"
    assert file.configuration in keyring.names
    assert key("b").secret not in file.name + repr(keyring) + repr(file)


@pytest.mark.parametrize("data", [b"", b"{}x", b'{"rings": {"secrets": ["a"]}}', b'{"keys": 1}'])
def test_a_damaged_keyring_is_rejected_without_its_content(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^it (is not a keyring|lacks a key that it names)$"):
        read_keyring(data)


def wanted_key(
    encryption: Encryption,
    keyring: Keyring,
    *,
    given: bytes | None = None,
    before: datetime | None = None,
    after: timedelta = timedelta(),
) -> Key:
    wanted = desired_goal(
        encryption, keyring, given=given, rotate_before=before, now=NOW + after, random=RANDOM
    )
    assert wanted.key is not None
    return wanted.key


def test_a_key_is_replaced_by_request_by_schedule_and_by_another_key_of_the_user() -> None:
    scheduled = Encryption(provider="aesgcm", rotate_after_days=30)
    keyring = first_keyring(Goal(frozenset({"secrets"}), key("a", "aesgcm")))
    new = f"key-{RANDOM[:NAME_BYTES].hex()}"
    assert wanted_key(scheduled, keyring).name == "a"
    assert wanted_key(scheduled, keyring, after=timedelta(days=29)).name == "a"
    assert wanted_key(scheduled, keyring, after=timedelta(days=30)).name == new
    assert wanted_key(scheduled, keyring, before=NOW).name == "a"
    assert wanted_key(scheduled, keyring, before=NOW + timedelta(seconds=1)).name == new
    assert wanted_key(Encryption(), keyring).name == new, "another provider"
    # The clock was ahead when it was created, by an unknown time.
    ahead = -timedelta(days=300)
    assert wanted_key(scheduled, keyring, after=ahead).name == "a"
    assert wanted_key(scheduled, keyring, before=NOW + ahead, after=ahead).name == new

    mine = Encryption(keys_from=SecretKey(name="mine"))
    given = wanted_key(mine, keyring, given=b"x" * 32)
    assert base64.b64decode(given.secret) == b"x" * 32
    used = first_keyring(Goal(frozenset({"secrets"}), given))
    assert wanted_key(mine, used, given=b"x" * 32) == given
    assert wanted_key(mine, used, given=b"y" * 32) != given
    assert wanted_key(Encryption(), used).generated


def server(name: str, *, ready: bool = True, current: bool | None = True) -> InstanceStatus:
    return InstanceStatus(
        name=name, component="kube-apiserver", version="v1.34.4", ready=ready, current=current
    )


def test_a_stage_waits_for_every_api_server() -> None:
    desired = desired_control_plane("v1.34.4", replicas=2)
    one, two = server("kube-apiserver-0"), server("kube-apiserver-1")

    def settled(*servers: InstanceStatus, stopping: str = "") -> bool:
        stops = frozenset(filter(None, [stopping]))
        return uses_keyring(desired, Observed(statuses=servers, stopping=stops))

    assert settled(one, two)
    assert settled(one, two, stopping="etcd-1")
    assert not settled(one)
    assert not settled(one, two, server("kube-apiserver-2", current=False))
    assert not settled(one, replace(two, ready=False))
    assert not settled(one, replace(two, current=False))
    assert not settled(one, replace(two, current=None))
    assert not settled(one, two, stopping="shoal-kube-apiserver-5d4f-x2x9z")
    assert uses_keyring(replace(desired, replicas=1), Observed(statuses=(one,)))
    none = replace(desired, replicas=0)
    assert not uses_keyring(none, Observed())


def test_api_servers_restart_for_another_configuration_only() -> None:
    desired = desired_control_plane("v1.34.4")
    keyring = next_keyring(first_keyring(goal("a")), goal("b"))
    encrypted = replace(desired, encryption=keyring.files())
    settled = replace(desired, encryption=replace(keyring, previous=None).files())
    arguments = components_of(encrypted).api_server(0).arguments
    flag = f"--encryption-provider-config=/state/127.64.0.9/pki/encryption-{keyring.name}.json"
    assert flag in arguments
    assert components_of(settled).api_server(0).arguments == arguments
    assert not any("encryption" in flag for flag in components_of(desired).api_server(0).arguments)
    # A pod mounts the one file that it needs.
    mounted = {*files_of("kube-apiserver", encrypted)} - {*files_of("kube-apiserver", desired)}
    assert mounted == {f"encryption-{keyring.name}.json"}
    assert files_of("kube-scheduler", encrypted) == files_of("kube-scheduler", desired)


@pytest.mark.parametrize("patch", [{"args": []}, {"args": ["--encryption-provider-config=/mine"]}])
def test_a_patch_cannot_change_the_configuration(patch: dict[str, Any]) -> None:
    spec = {"containers": [{"name": "kube-apiserver", **patch}]}
    merge = {"spec": {"template": {"spec": spec}}}
    target = {"kind": "Deployment", "component": "kube-apiserver"}
    patched = replace(on_pods(), pods=pod_settings(patches=[{"target": target, "merge": merge}]))
    objects_of(patched)
    encrypted = replace(patched, encryption=first_keyring(goal("a")).files())
    with pytest.raises(InvalidSpecError, match=r"^spec\.pods\.patches"):
        objects_of(encrypted)
    objects_of(replace(encrypted, pods=pod_settings()))


def test_files_on_processes_are_private_and_go_with_their_keys(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path, "127.64.0.9")
    keys = authorities(datetime.now(UTC))

    def files(keyring: Keyring) -> dict[str, int]:
        desired = replace(desired_control_plane("v1.34.4"), encryption=keyring.files())
        renew_certificates(state_dir, desired, keys, "127.64.0.9")
        found = state_dir.pki.glob("encryption-*")
        return {path.name: path.stat().st_mode & 0o777 for path in found}

    first = first_keyring(goal("a"))
    second = next_keyring(first, goal("b"))
    names = [f"encryption-{keyring.name}.json" for keyring in (first, second)]
    assert files(first) == {names[0]: 0o600}
    assert files(second) == dict.fromkeys(names, 0o600)
    assert files(replace(second, previous=None)) == {names[1]: 0o600}
    assert not files(Keyring())
