"""The phases of a restore, and the backups that it refuses."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from capelin.provider import Blocked
from capelin_control_plane.api import CapelinControlPlane, Spec
from capelin_control_plane.backup.restores import (
    RestoreFiles,
    backup_of,
    check_backup,
    moment_of,
    restore_phase,
    restore_request,
    revision_bump,
    source_of,
)
from capelin_control_plane.desired.component_files import OFF, EncryptionFile, EncryptionFiles
from capelin_control_plane.desired.control_plane import (
    RESTORE_ANNOTATION,
    InvalidSpecError,
    requested_restore,
)
from capelin_control_plane.desired.instances import Phase

from .factories import desired_control_plane
from .test_backups import manifest

NAME = "20260131T030000Z"
REQUEST = f"{NAME}@2026-01-31T04:00:00Z"


@pytest.mark.parametrize(
    ("request_", "files", "stopped", "phase"),
    [
        (None, RestoreFiles(), False, None),
        (REQUEST, RestoreFiles(), False, Phase.PREPARING),
        (REQUEST, RestoreFiles(prepared="another"), False, Phase.PREPARING),
        (REQUEST, RestoreFiles(prepared=REQUEST), False, Phase.STOPPING),
        (REQUEST, RestoreFiles(prepared=REQUEST), True, Phase.REPLACING),
        (REQUEST, RestoreFiles(replacing=True), True, Phase.REPLACING),
        (REQUEST, RestoreFiles(restored=REQUEST), False, Phase.STARTING),
        (REQUEST, RestoreFiles(restored=NAME), False, Phase.PREPARING),
        # The request was withdrawn.
        (None, RestoreFiles(prepared=REQUEST), False, None),
        (None, RestoreFiles(replacing=True), True, Phase.REPLACING),
        (None, RestoreFiles(replacing=True), False, Phase.STOPPING),
        (None, RestoreFiles(restored=REQUEST), False, None),
    ],
)
def test_the_phase_follows_from_the_request_and_the_files(
    request_: str | None, files: RestoreFiles, stopped: bool, phase: Phase | None
) -> None:
    assert restore_phase(request_, files, stopped=stopped) is phase


@pytest.mark.parametrize(
    ("stored", "desired", "message"),
    [
        ("v1.34.4", "v1.33.13", "may not understand"),
        ("v1.32.2", "v1.34.4", "only data of one minor version before"),
        ("v1.33.13", "v1.34.4", None),
        ("v1.34.4", "v1.34.0", None),
    ],
)
def test_a_backup_of_a_distant_version_is_rejected(
    stored: str, desired: str, message: str | None
) -> None:
    backup = replace(manifest(datetime.now(UTC)), kubernetes_version=stored)
    if message is None:
        check_backup(backup, desired_control_plane(desired), "a")
        return
    with pytest.raises(Blocked, match=message):
        check_backup(backup, desired_control_plane(desired), "a")


def test_a_backup_of_another_ca_is_rejected() -> None:
    backup = manifest(datetime.now(UTC))
    with pytest.raises(Blocked, match="another CA"):
        check_backup(backup, desired_control_plane(backup.kubernetes_version), "b")
    # A copy has a CA of its own.
    check_backup(backup, desired_control_plane(backup.kubernetes_version), None)


@pytest.mark.parametrize(
    "value",
    ["latest", f"../{NAME}", f"a/b/{NAME}", f"/{NAME}", f"{NAME}@", f"{NAME}@../x"],
)
def test_only_names_of_backups_are_accepted(value: str) -> None:
    mine = CapelinControlPlane.of("one", "default", spec=Spec(version="v1.34.4"))
    assert requested_restore(mine) is None
    mine.metadata.annotations = {RESTORE_ANNOTATION: value}
    with pytest.raises(InvalidSpecError, match="not the name of a backup"):
        requested_restore(mine)
    mine.metadata.annotations = {RESTORE_ANNOTATION: REQUEST}
    assert backup_of(requested_restore(mine) or "") == NAME
    assert source_of(REQUEST) is None
    mine.metadata.annotations = {RESTORE_ANNOTATION: f"prod/{REQUEST}"}
    copied = requested_restore(mine) or ""
    assert (source_of(copied), backup_of(copied)) == ("prod", NAME)


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        (OFF, EncryptionFiles(), None),
        ("a", EncryptionFiles(EncryptionFile("a", b"")), None),
        (OFF, EncryptionFiles(EncryptionFile("a", b"")), "keys of encryption at rest changed"),
        ("a", EncryptionFiles(), "keys of encryption at rest changed"),
        ("a", EncryptionFiles(EncryptionFile("a", b""), changing=True), None),
    ],
)
def test_other_encryption_keys_prevent_a_restore(
    before: str, now: EncryptionFiles, message: str | None
) -> None:
    stored = replace(manifest(datetime(2026, 1, 31, tzinfo=UTC)), encryption=before)
    desired = replace(desired_control_plane("v1.34.4"), encryption=now)
    if message is None:
        check_backup(stored, desired, "a")
    else:
        with pytest.raises(Blocked, match=message):
            check_backup(stored, desired, "a")


@pytest.mark.parametrize(("source", "prefix"), [(None, ""), ("prod", "prod/")])
def test_a_request_names_the_backup_and_its_moment(source: str | None, prefix: str) -> None:
    now = datetime(2026, 1, 31, 5, tzinfo=timezone(timedelta(hours=1)))
    assert restore_request(NAME, now, source) == f"{prefix}{REQUEST}"


@pytest.mark.parametrize(
    ("stored", "present", "readable"),
    [
        ({}, {}, True),
        ({"secrets": ("a",)}, {"secrets": ("a", "b")}, True),
        ({"secrets": ("a", "b")}, {"secrets": ("b", "a")}, True),
        ({}, {"secrets": ("identity", "a")}, True),
        ({"secrets": ("a", "b")}, {"secrets": ("b",)}, False),
        ({}, {"secrets": ("a",)}, False),
        ({"secrets": ("a",)}, {}, False),
        ({"secrets": ("a",)}, {"secrets": ("a",), "configmaps": ("a",)}, False),
    ],
)
def test_a_restore_needs_every_key_of_the_backup_and_no_end_of_a_change(
    stored: dict[str, tuple[str, ...]], present: dict[str, tuple[str, ...]], readable: bool
) -> None:
    backup = replace(manifest(datetime(2026, 1, 31, tzinfo=UTC)), encryption="x", rings=stored)
    files = EncryptionFiles(EncryptionFile("y", b""), changing=True, rings=present)
    desired = replace(desired_control_plane("v1.34.4"), encryption=files, rotation=1)
    if readable:
        check_backup(backup, desired, "a")
    else:
        with pytest.raises(Blocked, match="keys of encryption at rest changed"):
            check_backup(backup, desired, "a")


def test_revisions_grow_with_each_restore_in_any_order() -> None:
    first, clients = 100, [100]
    # A, a backup B of it, B, and A again, with some writes each time.
    second = first + revision_bump(f"{NAME}@2026-01-31T04:00:00Z", first) + 50
    clients.append(second)
    third = second + revision_bump(f"{NAME}@2026-01-31T04:00:01Z", second - 20) + 50
    clients.append(third)
    clients.append(first + revision_bump(f"prod/{NAME}@2026-01-31T04:00:02Z", first))
    assert clients == sorted(clients)
    assert clients[-1] < 2**63
    assert revision_bump(f"{NAME}@2026-01-31T04:00:02Z", 2**63) == 0


def test_a_request_without_a_moment_is_recognized() -> None:
    assert moment_of(REQUEST) == datetime(2026, 1, 31, 4, tzinfo=UTC)
    assert (
        moment_of(NAME) is moment_of(f"{NAME}@1") is moment_of(f"{NAME}@2026-01-31T04:00") is None
    )
