"""The stages of a rotation: components and clients always accept each other's certificates."""

import base64
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from capelin.pki import KeyPair, is_issued_by, new_ca, new_service_account_keys, split_pem
from capelin_control_plane.backends.pods.names import Names
from capelin_control_plane.backends.pods.pki_secret import files_of, pki_data
from capelin_control_plane.backends.processes.components import renew_certificates
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.backup.restores import check_backup
from capelin_control_plane.desired.control_plane import PROGRAMS, revision
from capelin_control_plane.desired.instances import Endpoint
from capelin_control_plane.keys.certificates import Authorities
from capelin_control_plane.keys.rotation import (
    PURPOSES,
    TOKEN_LIFETIME,
    Clients,
    Keys,
    NodeFacts,
    Progress,
    Purpose,
    Rotation,
    advanced,
    authority_name,
    behind,
    key_id,
    outdated_secrets,
    read_rotation,
    waiting_for,
    write_rotation,
)
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from .factories import components_of, desired_control_plane
from .processes.rig import authorities
from .test_backups import manifest

NOW = datetime.now(UTC).replace(microsecond=0)


def new_pair(purpose: Purpose) -> KeyPair:
    if purpose == "sa":
        keys = new_service_account_keys()
        return KeyPair(keys.public_key_pem, keys.private_key_pem)
    return new_ca("kubernetes", now=NOW)


def first_keys() -> dict[Purpose, Keys]:
    return {purpose: Keys(new_pair(purpose), Rotation(created=NOW)) for purpose in PURPOSES}


def stored(purpose: Purpose, keys: Keys) -> Keys:
    """The keys after they were written to a Secret and read again."""
    signer, *trusted = split_pem(keys.bundle)
    assert signer == keys.signer.certificate_pem, purpose
    return Keys(keys.signer, read_rotation(write_rotation(keys.rotation)), tuple(trusted))


def after(keys: Keys, steps: int, purpose: Purpose = "ca") -> Keys:
    for _ in range(steps):
        keys = stored(purpose, advanced(keys, lambda: new_pair(purpose), NOW))
    return keys


def test_a_ca_is_trusted_before_it_signs_and_after_it_has_signed() -> None:
    first = Keys(new_pair("ca"), Rotation(created=NOW))
    trusting = after(first, 1)
    issuing = after(trusting, 1)
    waiting = after(issuing, 1)
    dropped = after(waiting, 1)
    old, (new,) = first.signer, trusting.trusted
    assert [keys.rotation.stage for keys in (first, trusting, issuing, waiting, dropped)] == [
        None,
        "Trusting",
        "Issuing",
        "Waiting",
        None,
    ]
    assert trusting.signer == old
    assert [split_pem(keys.bundle) for keys in (issuing, waiting, dropped)] == [
        (new, old.certificate_pem),
        (new, old.certificate_pem),
        (new,),
    ]
    assert dropped.signer == waiting.signer == issuing.signer
    assert dropped.identity == first.identity, "the cluster stays the same"
    (cross,) = dropped.rotation.crosses
    assert is_issued_by(cross.encode(), old.certificate_pem)


def test_progress_has_the_oldest_key_and_the_newest_step() -> None:
    keys: dict[Purpose, Keys] = {
        purpose: replace(of, rotation=replace(of.rotation, created=NOW - days, since=NOW - days))
        for (purpose, of), days in zip(
            first_keys().items(), map(timedelta, range(len(PURPOSES))), strict=True
        )
    }
    progress = Progress.of(keys)
    assert (progress.step, progress.since) == (0, NOW)
    assert progress.created == NOW - timedelta(len(PURPOSES) - 1)


def test_certificates_that_a_user_has_added_stay_trusted() -> None:
    added = tuple(new_pair("ca").certificate_pem for _ in range(2))
    first = Keys(new_pair("ca"), Rotation(created=NOW), added)
    for steps in range(1, 9):
        keys = after(first, steps)
        assert set(added) <= set(keys.trusted), steps
        own = 2 if keys.rotation.stage else 1
        assert len(split_pem(keys.bundle)) == len(added) + own


def test_a_private_key_stays_in_the_secret_while_its_ca_is_trusted() -> None:
    first = Keys(new_pair("etcd"), Rotation(created=NOW))
    keys = first
    for _ in range(3):
        keys = after(keys, 1)
        assert keys.rotation.other is not None
        private = {keys.signer.private_key_pem.decode(), keys.rotation.other.private}
        assert first.signer.private_key_pem.decode() in private
        assert len(private) == 2
        assert "PRIVATE" not in repr(keys)
    assert after(keys, 1).rotation.other is None


def test_service_account_keys_have_no_cross_certificates() -> None:
    keys = after(Keys(new_pair("sa"), Rotation(created=NOW)), 2, "sa")
    assert keys.rotation.crosses == ()
    assert len(split_pem(keys.bundle)) == 2


def test_cross_certificates_are_limited() -> None:
    keys = after(Keys(new_pair("ca"), Rotation(created=NOW)), 4 * 5)
    assert len(keys.rotation.crosses) == 3


@pytest.mark.parametrize(
    ("steps", "used", "lagging", "outdated"),
    [
        ((0, 0, 0, 0), 0, "", ""),
        ((1, 1, 0, 0), 0, "proxy sa", ""),
        ((4, 4, 4, 3), 3, "sa", ""),
        # Restored from a backup from before the rotation.
        ((4, 4, 0, 4), 4, "proxy", "proxy"),
        ((0, 0, 0, 0), 4, "", "ca etcd proxy sa"),
        ((2, 4, 4, 4), 0, "ca", "ca"),
    ],
)
def test_secrets_that_are_one_step_behind_follow_and_older_ones_are_rejected(
    steps: tuple[int, ...], used: int, lagging: str, outdated: str
) -> None:
    pair = new_pair("ca")
    keys: dict[Purpose, Keys] = {
        purpose: Keys(pair, Rotation(step=step))
        for purpose, step in zip(PURPOSES, steps, strict=True)
    }
    assert " ".join(behind(keys)) == lagging
    assert " ".join(outdated_secrets(keys, used)) == outdated


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}x",
        b'{"step": 1}',
        b'{"step": -4}',
        b'{"created": "2026-01-01T00:00:00"}',
        b'{"other": {"public": "a", "private": "b"}}',
    ],
)
def test_a_damaged_state_is_rejected_without_its_content(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^its entry `rotation` (is damaged|lacks a CA or key)"):
        read_rotation(data)


def test_a_secret_of_an_older_version_has_not_taken_a_step() -> None:
    assert read_rotation(None) == Rotation()
    assert Progress.of(first_keys()).step == 0


@dataclass(frozen=True)
class Running:
    """A component with the files that it started with, or a client."""

    keys: dict[Purpose, Keys]
    step: int
    authorities: set[bytes]
    """All CAs of the test."""

    def presents(self, purpose: Purpose) -> set[bytes]:
        """The CAs of which one must be trusted to accept its certificate."""
        keys = self.keys[purpose]
        crosses = [cross.encode() for cross in keys.rotation.crosses]
        former = [ca for ca in self.authorities for cross in crosses if issued(cross, ca)]
        return {keys.signer.certificate_pem, *former}

    def trusts(self, purpose: Purpose) -> set[bytes]:
        return {*split_pem(self.keys[purpose].bundle)}


issued = cache(is_issued_by)


class ControlPlane(RuleBasedStateMachine):
    """Components with files, kubelets and tokens, and providers that are killed."""

    def __init__(self) -> None:
        super().__init__()
        self.secrets = first_keys()
        self.step = 0
        self.requested = False
        self.authorities = {keys.signer.certificate_pem for keys in self.secrets.values()}
        self.components = [self.started()] * 3
        self.kubelets = [self.started()] * 2

    def started(self) -> Running:
        return Running(dict(self.secrets), self.step, self.authorities)

    def progress(self) -> Progress:
        return Progress.of(self.secrets)

    def step_one(self, purpose: Purpose) -> None:
        keys = advanced(self.secrets[purpose], lambda: new_pair(purpose), NOW)
        self.secrets[purpose] = stored(purpose, keys)
        self.authorities.update(split_pem(keys.bundle))

    def reconcile(self, writes: int) -> None:
        """A reconcile of a provider that is killed after some writes."""
        lagging = behind(self.secrets)
        for purpose in lagging[:writes]:
            self.step_one(purpose)
        if lagging:
            return
        # It writes files: each component that starts from now on has them.
        self.step = self.progress().step
        if any(revision(running.step) != revision(self.step) for running in self.components):
            return
        stage = self.progress().stage
        needed = {kubelet.keys["ca"].signer for kubelet in self.kubelets}
        may = {
            None: self.requested and self.step == 0,
            "Waiting": needed == {self.secrets["ca"].signer},
        }.get(stage, True)
        if may:
            for purpose in PURPOSES[:writes]:
                self.step_one(purpose)

    @rule()
    def request(self) -> None:
        self.requested = True

    @rule(writes=st.integers(0, 4))
    def reconcile_and_die(self, writes: int) -> None:
        self.reconcile(writes)

    @rule(index=st.integers(0, 2))
    def restart_a_component(self, index: int) -> None:
        # Its files are of the last complete reconcile.
        if not behind(self.secrets) and self.step == self.progress().step:
            self.components[index] = self.started()

    @precondition(lambda self: self.progress().stage == "Waiting")
    @rule(index=st.integers(0, 1))
    def a_kubelet_gets_a_certificate_and_keeps_its_old_bundle(self, index: int) -> None:
        signer = self.components[0].keys["ca"].signer
        kubelet = self.kubelets[index]
        old = kubelet.keys["ca"]
        new = replace(old, signer=signer, trusted=split_pem(old.bundle))
        self.kubelets[index] = replace(kubelet, keys={**kubelet.keys, "ca": new})

    @invariant()
    def components_accept_each_other(self) -> None:
        for one, other in product(self.components, repeat=2):
            for purpose in ("ca", "etcd", "proxy"):
                assert one.presents(purpose) & other.trusts(purpose)
            assert one.keys["sa"].signer.certificate_pem in other.trusts("sa")

    @invariant()
    def kubelets_and_components_accept_each_other(self) -> None:
        for kubelet, component in product(self.kubelets, self.components):
            assert kubelet.keys["ca"].signer.certificate_pem in component.trusts("ca")
            assert component.presents("ca") & kubelet.trusts("ca")

    def teardown(self) -> None:
        """From every state, the rotation reaches its end."""
        for _ in range(12):
            self.reconcile(4)
            for index in range(3):
                self.restart_a_component(index)
            if self.progress().stage == "Waiting":
                for index in range(2):
                    self.a_kubelet_gets_a_certificate_and_keeps_its_old_bundle(index)
            self.components_accept_each_other()
            self.kubelets_and_components_accept_each_other()
        assert self.progress().step == (4 if self.requested else 0)
        for purpose in PURPOSES:
            assert len(split_pem(self.secrets[purpose].bundle)) == 1
            assert self.components[0].keys[purpose] == self.secrets[purpose]


TestControlPlane = ControlPlane.TestCase
TestControlPlane.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def rotated(steps: int) -> Authorities:
    """The CAs and keys after some steps."""
    first = authorities(NOW)
    keys = {
        name: after(Keys(first.of(name), Rotation(created=NOW)), steps)
        for name in ("ca", "etcd", "proxy")
    }
    return replace(
        first,
        **{name: of.signer for name, of in keys.items()},
        also_trusted={name: b"".join(of.trusted) for name, of in keys.items()},
        crosses={name: "".join(of.rotation.crosses).encode() for name, of in keys.items()},
        progress=Progress(step=steps),
        first=keys["ca"].identity,
    )


def test_files_have_the_bundle_and_certificates_with_their_chain(tmp_path: Path) -> None:
    state_dir, desired = StateDir(tmp_path, "127.64.0.9"), desired_control_plane("v1.34.4")

    def certificates(steps: int) -> list[int]:
        renew_certificates(state_dir, desired, rotated(steps), "127.64.0.9")
        names = ("ca-ca.crt", "apiserver.pem", "etcd.pem", "ca-signing.pem", "service-account.pub")
        return [(state_dir.pki / name).read_bytes().count(b"-----BEGIN ") for name in names]

    # With the key. The controller manager reads only one certificate of the signer.
    assert certificates(0) == [1, 2, 2, 2, 1]
    assert certificates(1) == [2, 2, 2, 2, 1]
    assert certificates(2) == [2, 3, 3, 2, 1]
    assert certificates(4) == [1, 3, 3, 2, 1]
    keys, contents = rotated(2), set[bytes]()
    for _ in range(2):
        renew_certificates(state_dir, desired, keys, "127.64.0.9")
        contents.add((state_dir.pki / "apiserver.pem").read_bytes())
    assert len(contents) == 1, "not issued again"


@pytest.mark.parametrize(("steps", "value"), [(0, None), (1, "1"), (2, "2"), (3, "2"), (4, "4")])
def test_components_restart_for_each_stage_that_changes_files(
    steps: int, value: str | None
) -> None:
    desired = replace(desired_control_plane("v1.34.4"), rotation=steps)
    components = components_of(desired)
    for instance in (*components.etcd, components.api_server(0), *components.controllers):
        assert instance.environment.get("CAPELIN_AUTHORITIES") == value
    assert "CAPELIN_AUTHORITIES" not in components.relay.environment
    for component in PROGRAMS:
        markers = [name for name in files_of(component, desired) if name.startswith("authorities-")]
        assert markers == ([] if value is None else [f"authorities-{value}"])


@pytest.mark.parametrize(
    ("steps", "markers"), [(0, []), (1, ["1"]), (2, ["1", "2"]), (3, ["1", "2"]), (4, ["2", "4"])]
)
def test_the_secret_of_pods_keeps_what_pods_of_the_last_stage_mount(
    steps: int, markers: list[str]
) -> None:
    desired = replace(desired_control_plane("v1.34.4"), rotation=steps)
    names, endpoint = Names("default", "one"), Endpoint("a", "10.0.0.1", 6443)
    data, _ = pki_data(desired, rotated(steps), names, endpoint, {})
    found = sorted(name.removeprefix("authorities-") for name in data if "authorities" in name)
    assert found == markers
    for component in PROGRAMS:
        assert {*files_of(component, desired)} <= data.keys()


NODE = NodeFacts("a", NOW - timedelta(days=1))


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (Clients(nodes=[NODE]), "1 Node whose kubelet has a certificate of the old CA (a)"),
        (Clients(nodes=[replace(NODE, authority="old")]), "1 Node whose"),
        (Clients(nodes=[replace(NODE, authority="new")]), None),
        (Clients(nodes=[replace(NODE, simulated=True)]), None),
        (Clients(nodes=[replace(NODE, created=NOW + timedelta(seconds=1))]), None),
        (Clients(tokens=["default/legacy"]), "1 Secret with a token of the old"),
        (
            Clients(tokens=["b", "a"]),
            "2 Secrets with a token of the old service account key (a, b)",
        ),
        (Clients(machines=["m"]), "1 Machine with old bootstrap data that has not joined (m)"),
        (
            Clients(nodes=[replace(NODE, name=f"n{number}") for number in range(7)]),
            "7 Nodes whose kubelet has a certificate of the old CA (n0, n1, n2, n3, n4 and 2 more)",
        ),
    ],
)
def test_the_old_ca_stays_while_a_client_needs_it(clients: Clients, message: str | None) -> None:
    later = NOW + TOKEN_LIFETIME
    waiting = waiting_for(clients, authority="new", since=NOW, now=later, confirmed=True)
    assert [line[: len(message or "")] for line in waiting] == (
        [] if message is None else [message]
    )


def test_names_that_other_programs_store_do_not_change() -> None:
    """API servers put the ID of a key into tokens, and Nodes keep the name of a CA."""
    key = base64.b64decode(
        "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEq0h23uGPCxucZhF7vgq2JXVjUXb+BZQRDPGVQ9qXK3sgv8i7TpHY8y8y"
        "buGleErhtPiqPX6Dt63m4tF3z/bAqw=="
    )
    assert key_id(key) == "U1oM6NizbhLalx_P_67681cNBIpsRVWnfCFY-GLL-cw"
    assert authority_name(key) == "535a0ce8d8b3"


def test_tokens_and_a_confirmation_are_awaited() -> None:
    def waiting(after: timedelta, *, confirmed: bool = True) -> tuple[str, ...]:
        return waiting_for(
            Clients(), authority="new", since=NOW, now=NOW + after, confirmed=confirmed
        )

    (first,), (second,) = waiting(timedelta()), waiting(TOKEN_LIFETIME - timedelta(seconds=1))
    assert first == second, "the condition is quiet"
    assert first.startswith("tokens of pods, until ")
    assert waiting(TOKEN_LIFETIME) == ()
    assert waiting(TOKEN_LIFETIME, confirmed=False) == (
        "a confirmation that no copy of a kubeconfig is in use",
    )


def test_the_hours_of_a_sleep_renew_no_token() -> None:
    def waiting(awake_since: datetime | None) -> tuple[str, ...]:
        now = NOW + timedelta(hours=8)
        return waiting_for(
            Clients(), authority="new", since=NOW, now=now, confirmed=True, awake_since=awake_since
        )

    assert waiting(None) == waiting(NOW - timedelta(days=1)) == ()
    (line,) = waiting(NOW + timedelta(hours=7, minutes=30))
    assert line.startswith("tokens of pods, until ")


def test_a_backup_from_before_a_rotation_is_restored_in_each_of_its_stages() -> None:
    keys, desired = rotated(4), desired_control_plane("v1.34.4")
    backup = replace(manifest(NOW), authority=keys.first or "")
    for steps in range(6):
        check_backup(backup, replace(desired, rotation=steps), keys.identity)
