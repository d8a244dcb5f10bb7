"""Start times of control planes on pods compared with bare pods, and their resources."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from statistics import median
from time import monotonic
from uuid import uuid4

import pytest
from capelin.api.core import Namespace
from capelin.testing.waiting import until

from .bare import bare_pods
from .conftest import VERSIONS
from .hosted import Hosted

VERSION = VERSIONS[-1]
ONE_BY_ONE, AT_ONCE = 3, 10
SETTLING, REST = 45, 60

pytestmark = pytest.mark.timeout(1800)

Record = Callable[[str, object], None]


async def test_a_control_plane_starts_within_twice_the_time_of_bare_pods(
    hosted: Hosted, record_property: Record
) -> None:
    bare: list[float] = []
    own: list[float] = []
    for number in range(ONE_BY_ONE):
        bare.append(await bare_start(hosted, 1))
        own.append(await start([hosted.named(f"one-{number}")]))
        await hosted.delete_all()
    record_property("seconds: etcd and API server as bare pods", rounded(bare))
    record_property("seconds: a control plane initialized", rounded(own))
    record_property("times the bare pods", round(median(own) / median(bare), 2))
    assert median(own) <= 2 * median(bare)


async def test_ten_control_planes_start_within_twice_the_time_of_ten_bare_ones(
    hosted: Hosted, record_property: Record
) -> None:
    bare = await bare_start(hosted, AT_ONCE)
    them = [hosted.named(f"ten-{number}") for number in range(AT_ONCE)]
    own = await start(them)
    record_property(f"seconds: {AT_ONCE} as bare pods", round(bare, 1))
    record_property(f"seconds: {AT_ONCE} control planes initialized", round(own, 1))
    record_property(f"{AT_ONCE} at once: times the bare pods", round(own / bare, 2))
    for one in them:
        await one.settles()
    await asyncio.sleep(SETTLING)
    before, since = usage(hosted), monotonic()
    await asyncio.sleep(REST)
    after, seconds = usage(hosted), monotonic() - since
    for component in ("", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        pods = [name for name in after if component in name]
        memory = sum(after[name][0] for name in pods) / AT_ONCE / 2**20
        cpu = sum(after[name][1] - before[name][1] for name in pods) / AT_ONCE / seconds
        record_property(f"each of {AT_ONCE}, {component or 'all pods'}: MiB", round(memory))
        record_property(f"each of {AT_ONCE}, {component or 'all pods'}: mCPU", round(1000 * cpu, 1))
    assert own <= 2 * bare


async def start(control_planes: Sequence[Hosted]) -> float:
    """Seconds from creation until all are initialized."""
    began = monotonic()
    await asyncio.gather(*(one.create(VERSION) for one in control_planes))
    for one in control_planes:
        await until(one.is_initialized, within=300)
    return monotonic() - began


async def bare_start(hosted: Hosted, count: int) -> float:
    async with namespace_for(hosted) as namespace:
        names = [f"bare-{number}" for number in range(count)]
        pods = await bare_pods(hosted.client, namespace, names, VERSION)
        began = monotonic()
        await asyncio.gather(*(each.start(hosted.client) for each in pods))
        return monotonic() - began


@asynccontextmanager
async def namespace_for(hosted: Hosted) -> AsyncGenerator[str]:
    """A namespace, which is removed afterwards."""
    name = f"bare-{uuid4().hex[:8]}"
    await hosted.client.create(Namespace.of(name))
    yield name
    # API servers stop slowly, and the test does not wait for that.
    hosted.kind.kubectl("delete", "pods", "--all", f"--namespace={name}", "--grace-period=1")
    await hosted.client.delete(Namespace, name)

    async def is_gone() -> bool:
        return await hosted.client.find(Namespace, name) is None

    await until(is_gone, within=120)


def usage(hosted: Hosted) -> Mapping[str, tuple[int, float]]:
    """Memory in bytes and CPU seconds by pod."""
    summary = hosted.kind.kubelet_summary()
    return {
        pod["podRef"]["name"]: (
            pod["memory"]["workingSetBytes"],
            pod["cpu"]["usageCoreNanoSeconds"] / 1e9,
        )
        for pod in summary["pods"]
        if pod["podRef"]["namespace"] == hosted.namespace
    }


def rounded(times: Sequence[float]) -> str:
    return ", ".join(f"{seconds:.1f}" for seconds in times)
