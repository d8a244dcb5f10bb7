"""The status of a control plane's instances, and hints on how to repair failures."""

import errno
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from capelin.provider import Blocked
from capelin_embedded.processes import Phase, ProcessState

from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backends.processes import member_data
from capelin_control_plane.backends.processes.plan import runs_as_desired
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.desired.control_plane import (
    FIELDS,
    Component,
    ComponentSettings,
    ControlPlane,
)
from capelin_control_plane.desired.instances import (
    DesiredComponents,
    Instance,
    InstanceStatus,
    Plan,
)

_FAILING = frozenset({Phase.BACKING_OFF, Phase.FAILED})


def instance_statuses(
    plan: Plan,
    components: DesiredComponents | None,
    states: Mapping[str, ProcessState],
    state_dir: StateDir,
    desired: ControlPlane,
    *,
    comparable: bool = True,
) -> tuple[InstanceStatus, ...]:
    """The status of each planned instance, and of etcd members that are being replaced.

    Only components of the desired version are `comparable` with running ones.
    """
    names = {instance.name for instance in plan.instances}
    return (
        *(
            InstanceStatus(
                name=instance.name,
                component=instance.component,
                version=instance.version,
                ready=_phase(instance, states) is Phase.RUNNING,
                current=runs_as_desired(instance, components)
                if components is not None and comparable
                else None,
                failure=_failure(instance, states.get(instance.name), plan, state_dir, desired),
                unready=states[instance.name].reason
                if _phase(instance, states) is Phase.NOT_READY
                else "",
            )
            for instance in plan.instances
        ),
        *(
            InstanceStatus(
                name=member.name,
                component="etcd",
                version=member.version,
                ready=False,
                current=True,
                failure="lost its data, and is being replaced from the others",
            )
            for member in (components.etcd if components else ())
            if member.name not in names
            and member_data.member_loss(state_dir, member.index, "") is not None
        ),
    )


def hint_on(component: Component, failure: str, flags: Mapping[str, str]) -> str:
    """A hint on a failure, if one is known. `flags` are those of the user."""
    words = failure.replace("=", " ").replace('"', " ").replace(",", " ").split()
    for flag in sorted(flags):
        if {f"--{flag}", f"-{flag}"} & {word.rstrip(":") for word in words}:
            return f"fix spec.{FIELDS[component]}.extraArgs[{flag}]"
    if "address already in use" in failure.lower():
        return "stop what else listens there"
    if "no space left on device" in failure.lower():
        return "free space on the disk of the provider's --state-folder"
    return ""


@contextmanager
def disk_errors_block() -> Generator[None]:
    """Raise `Blocked` for an error of the machine, such as a full disk."""
    try:
        yield
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            hint = (
                "free space on the disk of the provider's --state-folder. Control planes keep"
                " running"
            )
            raise Blocked(Reason.DISK_FULL, what, hint) from error
        hint = "let the provider write to its --state-folder. Control planes keep running"
        raise Blocked(Reason.STATE_FOLDER_NOT_USABLE, what, hint) from error


def _phase(instance: Instance, states: Mapping[str, ProcessState]) -> Phase | None:
    state = states.get(instance.name)
    return None if state is None else state.phase


def _failure(
    instance: Instance,
    state: ProcessState | None,
    plan: Plan,
    state_dir: StateDir,
    desired: ControlPlane,
) -> str:
    if state is None or state.phase not in _FAILING:
        return ""
    settings = desired.settings.get(instance.component, ComponentSettings())
    hint = hint_on(instance.component, state.reason, settings.arguments)
    is_replaceable = (
        instance.component == "etcd"
        and len(plan.of("etcd")) > 1
        and member_data.has_data(state_dir, instance.index)
    )
    if not hint and state.phase is Phase.FAILED and is_replaceable:
        folder = state_dir.etcd_data(instance.index)
        hint = f"if its data is broken, remove {folder}: it is replaced from the others"
    return f"{state.reason}; {hint}" if hint else state.reason
