"""The example in plain kopf as pods of its chart: two replicas, one of which is killed."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from capelin.api.capi import Cluster
from capelin.api.core import Namespace, Pod
from capelin.client import Client, Config
from capelin.provider import Provider
from capelin.testing.waiting import until
from capelin_release.tools import HELM

from tests.integration.test_kopf_release import (
    DEPLOYMENTS,
    EXAMPLE,
    NAMESPACE,
    TEXT,
    greeting,
    holder_of,
    install,
    make_cluster,
    provider,
)

from .hosted import is_ready
from .kind_cluster import KindCluster, run
from .release_images import archive_of, image_of

__all__ = ["provider"]  # a fixture
pytestmark = [pytest.mark.needs_programs(HELM), pytest.mark.timeout(600)]


def load_example(cluster: KindCluster, name: str, folder: Path) -> None:
    """Load an image with the module of the example and our library."""
    run("docker", "load", "--input", str(archive_of("capelin-control-plane")))
    container = run("docker", "create", image_of("capelin-control-plane")).strip()
    try:
        run("docker", "cp", str(EXAMPLE / "greetings.py"), f"{container}:/greetings.py")
        command = 'ENTRYPOINT ["/usr/bin/python3", "-m", "greetings"]'
        changes = ("--change", command, "--change", "ENV PYTHONPATH=/")
        run("docker", "commit", *changes, container, name)
    finally:
        run("docker", "rm", container)
    archive = folder / "greetings.tar"
    run("docker", "save", "--output", str(archive), name)
    cluster.load_archive(archive)


@pytest.fixture
async def client(kind: KindCluster) -> AsyncGenerator[Client]:
    async with Client(Config.from_kubeconfig(kind.kubeconfig), manager="user") as client:
        yield client


async def test_the_second_pod_greets_when_the_first_one_is_killed(
    kind: KindCluster, client: Client, provider: Provider, tmp_path: Path
) -> None:
    namespace = f"greetings-{uuid4().hex[:6]}"
    for name, level in ((namespace, "privileged"), (NAMESPACE, "restricted")):
        created = Namespace.of(name)
        created.metadata.labels = {"pod-security.kubernetes.io/enforce": level}
        await client.apply(created)
    await install(provider, tmp_path, kind.kubeconfig)
    (deployment,) = (await client.list(DEPLOYMENTS, namespace=NAMESPACE)).items
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    await asyncio.to_thread(load_example, kind, container["image"], tmp_path)

    async def ready_pods() -> list[Pod]:
        pods = (await client.list(Pod, NAMESPACE)).items
        return [pod for pod in pods if is_ready(pod)]

    await until(ready_pods, lambda pods: len(pods) == 2)
    config = Config.from_kubeconfig(kind.kubeconfig)
    # Pods do not reach the address on this machine.
    inside = replace(config.server, address="https://kubernetes.default.svc")
    await make_cluster(client, replace(config, server=inside), namespace, "hello")
    await until(lambda: greeting(client), lambda text: text == "hello")

    holder = await until(lambda: holder_of(client))
    leader = next(pod for pod in await ready_pods() if pod.name in holder)
    await client.delete(Pod, leader.name, NAMESPACE, uid=leader.uid, grace_seconds=0)
    # The kubelet kills it soon after.
    await until(lambda: holder_of(client), lambda holder: leader.name not in holder)
    await client.patch(Cluster, "demo", namespace, {"metadata": {"labels": {TEXT: "goodbye"}}})
    await until(lambda: greeting(client), lambda text: text == "goodbye")
    await until(ready_pods, lambda pods: len(pods) == 2)
