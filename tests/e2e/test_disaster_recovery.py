"""A management cluster is lost, and the commands of docs/how-to/recover.md continue in a new one.

Cluster API's core and kubeadm bootstrap provider and the control plane provider are real. They run
as processes of an environment, and the control plane on pods of its kind cluster.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, cast
from uuid import uuid4

import pytest
from capelin.api.core import ConfigMap, Namespace, Secret
from capelin.client import Client, Config
from capelin.contract import find_condition
from capelin.testing.waiting import until
from capelin_cli.clusters.up import UpOptions, bring_up
from capelin_cli.environments.kind_target import KindOptions
from capelin_embedded.management import UpRequest

from tests.faults.http2 import Http2Load
from tests.integration.homes import Home, processes
from tests.s3.versitygw import BUCKET, KEY_ID, SECRET, SECRET_DATA, VERSITYGW, S3Server

from .conftest import VERSIONS, load_programs
from .hosted import Hosted
from .how_to_pages import run_block
from .kind_cluster import IMAGE, KIND, KindCluster, delete, run
from .machines import (
    KUBECTL,
    POD_CIDR,
    Nodes,
    addons,
    are_ready,
    join,
    machines,
    run_pods,
    use,
)
from .management_clusters import PROVIDER, destination, load_image, portable_endpoint
from .release_images import image_of

NAMESPACE = "team"
KEY = b"k" * 32
MOST_LOST_SECONDS = 5
"""Of acknowledged writes. docs/how-to/recover.md has the same bound."""

pytestmark = [
    pytest.mark.timeout(2700),
    pytest.mark.needs_programs(VERSITYGW, "clusterctl", "etcdutl", f"kubectl@{KUBECTL}"),
]


@dataclass
class Writer(Http2Load):
    """A client that writes about ten times in a second, with the time of each success."""

    moments: dict[str, float] = field(default_factory=dict[str, float])

    async def _request(self, method: str, path: str, content: object = None) -> bool:
        is_done = await super()._request(method, path, content)
        if is_done and method == "POST":
            name = cast("dict[str, Any]", content)["metadata"]["name"]
            self.moments[name] = monotonic()
        return is_done


@asynccontextmanager
async def management_cluster(home: Home, server: S3Server) -> AsyncGenerator[Hosted]:
    """A new kind cluster with the managers of an environment, which is lost at the end."""
    environment = f"dr-{uuid4().hex[:6]}"
    variables = {
        "CAPELIN_BACKENDS": "pods",
        "CAPELIN_BACKUP_ENDPOINTS": server.endpoint,
        "CAPELIN_RESTORE_IMAGE": image_of(PROVIDER),
    }
    request = UpRequest(providers=("kubeadm-bootstrap",), variables=variables, prefetch=False)
    options = UpOptions(environment, request, None, within=600, kind=KindOptions(IMAGE))
    name, folder = f"capelin-{environment}", home.folder / f"{environment}-files"
    try:
        await bring_up(options)
        await asyncio.to_thread(folder.mkdir)
        cluster = KindCluster(name, folder / "kubeconfig")
        content = await asyncio.to_thread(run, KIND, "get", "kubeconfig", "--name", name)
        await asyncio.to_thread(cluster.kubeconfig.write_text, content)
        await load_programs(cluster, folder)
        load_image(cluster)
        async with Client(Config.from_kubeconfig(cluster.kubeconfig), manager="e2e") as client:
            yield Hosted(client, NAMESPACE, "one", kind=cluster)
    finally:
        # All of its objects still exist.
        await asyncio.to_thread(delete, name)
        running = processes(home.environment(environment))
        # A supervisor would start the others again.
        for name in sorted(running, key=lambda it: it != "supervisor"):
            with suppress(ProcessLookupError):
                os.kill(running[name], signal.SIGKILL)
        await home.capelin("down", "--yes", "-e", environment)


async def restore(hosted: Hosted, server: S3Server, folder: Path) -> str:
    """Run the command of the page."""
    values = {
        "KUBECONFIG": str(hosted.kind.kubeconfig),
        "NAMESPACE": hosted.namespace,
        "CLUSTER": hosted.name,
        "BUCKET": f"{server.endpoint}/{BUCKET}",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        # In place of `--ca-file`.
        "SSL_CERT_FILE": str(folder / "ca.pem"),
    }
    return await run_block("recover.md", 'restore cluster "$CLUSTER"', values, folder)


async def is_archived(hosted: Hosted) -> bool:
    status = (await hosted.get()).status
    found = find_condition(status.conditions, "ArchiveHealthy") if status else None
    return found is not None and found.status == "True"


async def names_in(workload: Client) -> set[str]:
    return {found.name for found in (await workload.list(ConfigMap, "default")).items}


async def create(hosted: Hosted, server: S3Server, address: dict[str, object]) -> None:
    """Create the cluster, with backups and a continuous archive."""
    await hosted.client.create(Namespace.of(hosted.namespace))
    await hosted.client.create(Secret.of("backup-key", hosted.namespace, data={"key": KEY}))
    await hosted.client.create(Secret.of("credentials", hosted.namespace, data=SECRET_DATA))
    backup = {
        "destination": destination(server),
        "encryptionKey": {"name": "backup-key"},
        "schedule": "0 3 * * *",
        "continuous": True,
    }
    await hosted.create(
        VERSIONS[-1],
        network={"pods": {"cidrBlocks": [POD_CIDR]}},
        addons=addons(hosted.kind),
        controlPlaneEndpoint=address,
        etcd={"backup": backup},
    )
    await hosted.settles()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The home folder of the environments, for this process and for the command."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # The command looks for kind there.
    program = shutil.which(KIND)
    assert program is not None
    monkeypatch.setenv("PATH", f"{Path(program).parent}:{os.environ['PATH']}")
    return Home(tmp_path / "state")


async def test_one_command_continues_a_lost_cluster_with_its_nodes(
    server: S3Server, home: Home, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    (tmp_path / "backup.key").write_bytes(KEY)
    (tmp_path / "ca.pem").write_text(server.ca)
    async with AsyncExitStack() as stack:
        async with management_cluster(home, server) as hosted:
            endpoint = await stack.enter_async_context(portable_endpoint())
            await endpoint.lead_to(hosted.kind)
            machine = await stack.enter_async_context(machines(hosted.kind, 1))
            await create(hosted, server, endpoint.spec)
            async with hosted.workload() as workload:
                await join(hosted, workload, machine)
                await run_pods(hosted, workload, machine)
                before = await Nodes.read(workload)
            await until(lambda: is_archived(hosted), within=120)
            authority = (await hosted.client.get(Secret, "one-ca", hosted.namespace)).data
            writer = Writer(Config.from_kubeconfig(await hosted.kubeconfig()), pause=0.1)
            writing = asyncio.create_task(writer.run())
            await writer.reaches(400)
            lost_at = monotonic()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

        async with management_cluster(home, server) as hosted:
            await endpoint.lead_to(hosted.kind)
            began = monotonic()
            await restore(hosted, server, tmp_path)
            record_property("seconds of the command", round(monotonic() - began, 1))
            async with hosted.workload() as workload:
                await until(lambda: are_ready(workload, 1), within=120)
                record_property("seconds until Nodes are ready", round(monotonic() - began, 1))
                after = await Nodes.read(workload)
                assert after.uids == before.uids
                assert before.containers.items() <= after.containers.items()
                kept = await names_in(workload)
                moments = writer.moments.items()
                missing = {name: lost_at - moment for name, moment in moments if name not in kept}
                record_property("acknowledged writes", len(writer.moments))
                record_property("seconds lost", round(max(missing.values(), default=0), 1))
                assert not [name for name, age in missing.items() if age > MOST_LOST_SECONDS]
                await use(hosted, workload, 1, tmp_path)
            found = await hosted.client.get(Secret, "one-ca", hosted.namespace)
            assert found.data == authority
            await hosted.delete_cluster()
