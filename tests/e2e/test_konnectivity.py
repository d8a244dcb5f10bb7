"""Konnectivity connects API servers to pods of nodes that they cannot reach."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import pytest
from capelin.testing.waiting import until
from capelin_control_plane.desired.control_plane import RENEW_ANNOTATION
from capelin_embedded.binaries import Binaries

from .conftest import VERSIONS
from .hosted import Hosted, is_ready
from .machines import (
    KUBECTL,
    POD_CIDR,
    addons,
    docker,
    join,
    kubectl,
    load_on,
    machines,
    run_pods,
    use,
)
from .program_images import program_image

NEW = VERSIONS[-1]
SERVER, AGENT = (f"localhost/konnectivity-{program}:e2e" for program in ("server", "agent"))

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.needs_programs(f"kubectl@{KUBECTL}", "konnectivity-server", "konnectivity-agent"),
]


async def test_konnectivity_connects_api_servers_to_unreachable_nodes(
    hosted: Hosted, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    programs = await Binaries().fetch(["konnectivity-server", "konnectivity-agent"])
    server = program_image(SERVER, {"proxy-server": programs["konnectivity-server"].path})
    agent = program_image(AGENT, {"proxy-agent": programs["konnectivity-agent"].path})
    (tmp_path / "server.tar").write_bytes(server)
    (tmp_path / "agent.tar").write_bytes(agent)
    hosted.kind.load_archive(tmp_path / "server.tar")
    konnectivity = {"enabled": True, "serverImage": SERVER, "agentImage": AGENT}
    await hosted.create(
        NEW,
        replicas=2,
        pods={"exposure": {"type": "NodePort"}, "konnectivity": konnectivity},
        network={"pods": {"cidrBlocks": [POD_CIDR]}},
        addons=addons(hosted.kind),
    )
    await hosted.settles()
    async with (
        hosted.workload() as workload,
        machines(hosted.kind, 1) as names,
        unreachable(hosted, names),
    ):
        for name in names:
            await load_on(name, tmp_path / "agent.tar")
        await join(hosted, workload, names)
        began = monotonic()
        await run_pods(hosted, workload, names)
        await use(hosted, workload, 1, tmp_path)
        record_property("seconds: pods run and were used", round(monotonic() - began, 1))
        await until(lambda: serves(hosted, tmp_path), within=60)

        before = {pod.uid for pod in await hosted.pods("kube-apiserver")}
        await hosted.annotate(RENEW_ANNOTATION, datetime.now(UTC).isoformat())
        await until(lambda: are_others(hosted, before), within=240)
        await hosted.settles()
        began = monotonic()
        await until(lambda: logs_each_time(hosted, tmp_path), within=120)
        record_property("seconds: logs again after a renewal", round(monotonic() - began, 1))
        await use(hosted, workload, 1, tmp_path)

        await hosted.change(pods={"konnectivity": {"enabled": False}})
        await hosted.settles()
        # No other route exists.
        assert "serving" not in await kubectl(hosted, tmp_path, "logs", "web-0")


@asynccontextmanager
async def unreachable(hosted: Hosted, names: Sequence[str]) -> AsyncGenerator[None]:
    """Let no pod of the kind cluster connect to machines, which may connect to it."""
    format_ = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    rules = [
        ("FORWARD", "-d", address.strip(), "-m", "conntrack", "--ctstate", "NEW", "-j", "DROP")
        for name in names
        if (address := await docker("inspect", "-f", format_, name))
    ]
    for rule in rules:
        hosted.kind.on_node("iptables", "-I", *rule)
    yield
    for rule in rules:
        hosted.kind.on_node("iptables", "-D", *rule)


async def serves(hosted: Hosted, folder: Path) -> bool:
    """Whether an API server reaches a service of the workload cluster."""
    path = "/api/v1/namespaces/default/services/web:80/proxy/"
    return "shoal" in await kubectl(hosted, folder, "get", "--raw", path)


async def logs_each_time(hosted: Hosted, folder: Path) -> bool:
    """Whether logs are available from each API server."""
    answers = [await kubectl(hosted, folder, "logs", "web-0") for _ in range(8)]
    return all("serving" in answer for answer in answers)


async def are_others(hosted: Hosted, before: set[str]) -> bool:
    pods = await hosted.pods("kube-apiserver")
    return before.isdisjoint({pod.uid for pod in pods}) and all(map(is_ready, pods))
