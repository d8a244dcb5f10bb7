"""The status of a control plane's instances, their probes, and hints on how to repair failures."""

import asyncio
import errno
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, contextmanager
from functools import partial
from pathlib import Path

from capelin.provider import Blocked
from capelin_embedded.processes import (
    Liveness,
    Phase,
    Probe,
    ProcessState,
    liveness_probe,
    readiness_probe,
    tcp_probe,
)
from capelin_embedded.relay import reachable

from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backends.processes import member_data
from capelin_control_plane.backends.processes.components import (
    api_server_port,
    etcd_metrics_port,
    etcd_port,
    relay_target,
)
from capelin_control_plane.backends.processes.plan import runs_as_desired
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.desired.arguments import CONTROLLER_PORTS
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

PERIOD_SECONDS = 10.0
TIMEOUT_SECONDS = 5.0

# Clients wait for these components: stop one within 5 seconds after it hangs.
_SERVING = {"etcd", "kube-apiserver", "relay"}
READINESS_PERIOD_SECONDS = 3.0
"""An API server can be alive without serving: without etcd, or after the clock was wrong."""
SERVING_PERIOD_SECONDS = 2.0
SERVING_TIMEOUT_SECONDS = 1.0
_SERVING_RETRY_SECONDS = 0.25
# Two checks detect a stopped process. A busy one has half a minute.
_SERVING_FAILURES = 20
_FAILING = frozenset({Phase.BACKING_OFF, Phase.FAILED})


def reachability(state_dir: StateDir, instance: Instance) -> Probe | None:
    """Whether the instances that depend on this one may start, if it need not be ready.

    An API server itself waits until etcd answers. Started only then, it would be ready later.
    """
    if instance.component == "etcd":
        return partial(tcp_probe, state_dir.address, etcd_port(instance.index))
    return None


def readiness(state_dir: StateDir, instance: Instance) -> Probe:
    match instance.component:
        case "etcd":
            # A member is healthy if it has the leader of a quorum. One that reached its space
            # quota counts as healthy: clients can read it, and a flag solves it.
            port = etcd_metrics_port(instance.index)
            url = f"http://{state_dir.address}:{port}/health?exclude=NOSPACE"
            return partial(liveness_probe, url, within=TIMEOUT_SECONDS)
        case "kube-apiserver":
            url = f"https://{state_dir.address}:{api_server_port(instance.index)}/readyz"
            return partial(_api_server_ready, state_dir, url)
        case "kube-controller-manager" | "kube-scheduler":
            return partial(tcp_probe, state_dir.address, CONTROLLER_PORTS[instance.component])
        case "relay":
            return partial(tcp_probe, *relay_target(instance))


def liveness(state_dir: StateDir, instance: Instance) -> Liveness:
    """Whether an instance hangs."""
    if instance.component in _SERVING:
        return Liveness(
            probe=_alive(state_dir, instance, SERVING_TIMEOUT_SECONDS),
            period=SERVING_PERIOD_SECONDS,
            retry_period=_SERVING_RETRY_SECONDS,
            failure_threshold=_SERVING_FAILURES,
        )
    return Liveness(probe=_alive(state_dir, instance, TIMEOUT_SECONDS), period=PERIOD_SECONDS)


async def notify_relay(control: Path) -> bytes:
    """Have a relay read its targets. Its answer confirms that it did."""
    with reachable(control) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    try:
        writer.write(b"\n")
        return await reader.read()
    finally:
        writer.close()


def _alive(state_dir: StateDir, instance: Instance, within: float) -> Probe:
    get = partial(liveness_probe, ca=state_dir.ca("ca"), within=within)
    match instance.component:
        case "etcd":
            port = etcd_metrics_port(instance.index)
            return partial(
                liveness_probe, f"http://{state_dir.address}:{port}/livez", within=within
            )
        case "kube-apiserver":
            # Without etcd no API server is healthy, and a restart would not help.
            port = api_server_port(instance.index)
            return partial(get, f"https://{state_dir.address}:{port}/livez?exclude=etcd")
        case "kube-controller-manager" | "kube-scheduler":
            port = CONTROLLER_PORTS[instance.component]
            return partial(get, f"https://{state_dir.address}:{port}/healthz")
        case "relay":
            return partial(_relay_alive, state_dir.relay_control, within)


async def _api_server_ready(state_dir: StateDir, url: str) -> AsyncGenerator[str, None]:
    """Uses the certificate on disk, and loads it again after each renewal."""
    ca, certificate = state_dir.ca("ca"), state_dir.certificate("admin")
    while True:
        try:
            issued = certificate.stat().st_mtime_ns
            probe = readiness_probe(url, ca=ca, certificate=certificate, key=certificate)
            async with aclosing(probe):
                async for problem in probe:
                    yield problem
                    if problem and certificate.stat().st_mtime_ns != issued:
                        break
        except OSError as error:
            yield f"{error.filename or certificate} cannot be read: {error.strerror}"


async def _relay_alive(control: Path, within: float) -> AsyncGenerator[str, None]:
    while True:
        try:
            async with asyncio.timeout(within):
                answer = await notify_relay(control)
        except TimeoutError:
            yield f"it did not answer for {within:g} s"
        except OSError:
            yield "it does not answer"
        else:
            yield "" if answer else "it does not answer"


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
