"""Real kubelets join a control plane on pods by plain `kubeadm join`, and outlive its upgrade."""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

import pytest
from capelin.testing.waiting import until

from .conftest import VERSIONS
from .hosted import Hosted, under_load
from .machines import (
    KUBECTL,
    POD_CIDR,
    addons,
    are_ready,
    containers,
    docker,
    join,
    machines,
    run_pods,
    use,
)

OLD, NEW = VERSIONS
NODES = 2
CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"
SIGNING = "4m"
"""How long certificates of kubelets last. They renew them after 70 to 90 % of it."""

pytestmark = [pytest.mark.timeout(1200), pytest.mark.needs_programs(f"kubectl@{KUBECTL}")]


async def test_machines_that_join_run_pods_and_outlive_an_upgrade(
    hosted: Hosted, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    # Kubelets are of the newer version: nobody has an older one at hand.
    await hosted.create(
        OLD,
        replicas=2,
        etcd={"replicas": 3},
        network={"pods": {"cidrBlocks": [POD_CIDR]}},
        addons=addons(hosted.kind),
        controllerManager={"extraArgs": {"cluster-signing-duration": SIGNING}},
    )
    await hosted.settles()
    async with hosted.workload() as workload, machines(hosted.kind, NODES) as names:
        began = monotonic()
        await join(hosted, workload, names)
        record_property(
            f"seconds: {NODES} machines joined and Ready", round(monotonic() - began, 1)
        )
        certificates = await certificates_of(names)
        await run_pods(hosted, workload, names)
        await use(hosted, workload, NODES, tmp_path)
        before = await containers(workload)
        async with under_load(hosted, tmp_path) as clients:
            await hosted.change(version=NEW)
            await hosted.settles()
            assert clients.failed() == []
        assert clients.failed() == []
        for name, count in clients.counts().items():
            record_property(name, count)
        await until(lambda: certificates_of(names), certificates.isdisjoint, within=300)
        await until(lambda: are_ready(workload, NODES), within=60)
        assert await containers(workload) == before
        await use(hosted, workload, NODES, tmp_path)


async def certificates_of(names: Sequence[str]) -> set[str]:
    """What kubelets show API servers."""
    return {await docker("exec", name, "cat", CERTIFICATE) for name in names}
