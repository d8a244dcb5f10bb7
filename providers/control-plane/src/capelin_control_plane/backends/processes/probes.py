"""How processes of a control plane are probed for readiness and liveness."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from pathlib import Path

from capelin_embedded.processes import Liveness, Probe, liveness_probe, readiness_probe, tcp_probe
from capelin_embedded.relay import reachable

from capelin_control_plane.backends.processes.components import (
    api_server_port,
    etcd_metrics_port,
    etcd_port,
    relay_target,
)
from capelin_control_plane.backends.processes.state_dir import StateDir
from capelin_control_plane.desired.arguments import CONTROLLER_PORTS
from capelin_control_plane.desired.instances import Instance

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
