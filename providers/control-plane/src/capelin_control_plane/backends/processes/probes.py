"""How the processes of a control plane are asked whether they are ready, and whether they hang."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

from capelin.embedded.processes import Liveness, Probe, alive, answering, listening
from capelin.embedded.relay import reachable

from capelin_control_plane.backends.processes.composition import (
    CONTROLLER_MANAGER_PORT,
    SCHEDULER_PORT,
    api_server_port,
    etcd_metrics_port,
    etcd_port,
    relay_listens_at,
)
from capelin_control_plane.backends.processes.places import Place
from capelin_control_plane.plan import Instance

EVERY_SECONDS = 10.0
WITHIN_SECONDS = 5.0


def reachability(place: Place, one: Instance) -> Probe | None:
    """How an instance is asked whether those that start after it may, where it need not be ready.

    An API server waits itself until etcd answers; started only then, it would be ready later.
    """
    if one.component == "etcd":
        return partial(listening, place.address, etcd_port(one.slot))
    return None


def readiness(place: Place, one: Instance) -> Probe:
    """How an instance is asked whether it is ready."""
    match one.component:
        case "etcd":
            # Only a member of a quorum that knows its leader says that it is well. One that may
            # not grow any more is: it is read from, and there is a flag that mends it.
            health = f"http://{place.address}:{etcd_metrics_port(one.slot)}/health?exclude=NOSPACE"
            return partial(alive, health, within=WITHIN_SECONDS)
        case "kube-apiserver":
            return partial(
                answering,
                f"https://{place.address}:{api_server_port(one.slot)}/readyz",
                ca=place.authority("ca"),
                certificate=place.leaf("admin"),
                key=place.leaf("admin"),
            )
        case "kube-controller-manager":
            return partial(listening, place.address, CONTROLLER_MANAGER_PORT)
        case "kube-scheduler":
            return partial(listening, place.address, SCHEDULER_PORT)
        case "relay":
            return partial(listening, *relay_listens_at(one.command))


def liveness(place: Place, one: Instance) -> Liveness:
    """How an instance is found to hang."""
    return Liveness(probe=_alive(place, one), every=EVERY_SECONDS)


async def tell_relay(control: Path) -> bytes:
    """Have a relay read its targets; what it says of itself."""
    with reachable(control) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    try:
        writer.write(b"\n")
        return await reader.read()
    finally:
        writer.close()


def _alive(place: Place, one: Instance) -> Probe:
    ask = partial(alive, ca=place.authority("ca"), within=WITHIN_SECONDS)
    match one.component:
        case "etcd":
            port = etcd_metrics_port(one.slot)
            return partial(alive, f"http://{place.address}:{port}/livez", within=WITHIN_SECONDS)
        case "kube-apiserver":
            # Without etcd no API server is well, and another one would be no better.
            port = api_server_port(one.slot)
            return partial(ask, f"https://{place.address}:{port}/livez?exclude=etcd")
        case "kube-controller-manager":
            return partial(ask, f"https://{place.address}:{CONTROLLER_MANAGER_PORT}/healthz")
        case "kube-scheduler":
            return partial(ask, f"https://{place.address}:{SCHEDULER_PORT}/healthz")
        case "relay":
            return partial(_relaying, place.relay)


async def _relaying(control: Path) -> AsyncGenerator[str, None]:
    while True:
        try:
            async with asyncio.timeout(WITHIN_SECONDS):
                said = await tell_relay(control)
        except TimeoutError:
            yield f"it did not answer for {WITHIN_SECONDS:g} s"
        except OSError:
            yield "it does not answer"
        else:
            yield "" if said else "it does not answer"
