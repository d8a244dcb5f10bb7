"""Notifications of a control plane's relay about its targets."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin_control_plane.backends.processes import backend
from capelin_embedded.processes import ProcessSpec, Supervisor

from .rig import KEY, Idle, Rig, control_plane


async def test_relay_is_notified_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The previous provider may have died before it notified the relay.
    rig = Rig.on(tmp_path / "control-planes", Idle(tmp_path))
    plans_when_notified: list[bytes] = []

    async def notified(control: Path) -> bytes:
        plans_when_notified.append((control.parent / "plan.json").read_bytes())
        return b"{}"

    desired = control_plane()
    await rig.until(desired, lambda _: True)
    try:
        targets, plan = rig.folder / "targets", rig.folder / "plan.json"
        before, first = targets.read_bytes(), plan.read_bytes()
        monkeypatch.setattr(backend, "notify_relay", notified)
        await rig.until(desired, lambda _: True)
        assert plans_when_notified == []
        later = replace(desired, rollout_after=datetime.now(UTC))
        await rig.until(later, lambda _: True)
        assert plan.read_bytes() != first
        assert targets.read_bytes() == before
        assert plans_when_notified == [first]
    finally:
        await rig.backend.delete(KEY)


async def test_certificates_are_renewed_before_processes_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The provider was down for longer than the validity of a certificate.
    rig = Rig.on(tmp_path / "control-planes", Idle(tmp_path))
    await rig.until(control_plane(), lambda _: True)
    certificate = rig.folder / "pki" / "admin.pem"
    await rig.backend.release(KEY)
    certificate.write_text("expired")
    certificates: list[str] = []
    declare = Supervisor.declare

    def declared(supervisor: Supervisor, *specs: ProcessSpec) -> None:
        certificates.append(certificate.read_text())
        declare(supervisor, *specs)

    with monkeypatch.context() as watched:
        watched.setattr(Supervisor, "declare", declared)
        await rig.until(control_plane(), lambda _: True)
    assert certificates
    assert "expired" not in certificates
    await rig.backend.delete(KEY)
