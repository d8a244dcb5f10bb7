"""An add-on provider in plain kopf, on an API server that is also the workload cluster."""

import sys
from collections.abc import Callable
from pathlib import Path

import kopf
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Event, Secret
from capelin.client import Client, Config
from capelin.testing.managers import running
from capelin.testing.waiting import until

sys.path.insert(0, str(Path(__file__).parents[1]))
from greetings import LABEL, provider


def test_its_permissions_follow_from_its_handlers() -> None:
    allowed = {
        (resource, verb)
        for rule in provider().rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {("clusters", "watch"), ("clusters", "patch"), ("secrets", "get")} <= allowed
    assert ("secrets", "list") not in allowed


async def test_a_cluster_is_greeted_once_its_control_plane_answers(
    kubeconfig: Path, namespace: str, install_crds: Callable[..., None]
) -> None:
    install_crds("clusters.cluster.x-k8s.io")
    config = Config.from_kubeconfig(kubeconfig)
    registry = kopf.get_default_registry()
    async with (
        Client(config, manager="user") as client,
        running(config=config, namespace=namespace, kopf=registry),
    ):
        endpoint = {"host": "127.0.0.1", "port": 6443}
        demo = {
            "metadata": {"name": "demo", "namespace": namespace, "labels": {LABEL: "hello"}},
            "spec": {"controlPlaneEndpoint": endpoint},
        }
        await client.create(Cluster.read(demo))
        access = {"value": config.flattened()}
        await client.create(Secret.of("demo-kubeconfig", namespace, data=access))
        status = {"status": {"initialization": {"controlPlaneInitialized": True}}}
        await client.patch(Cluster, "demo", namespace, status, subresource="status")
        await until(lambda: client.find(ConfigMap, "greeting", "default"), is_greeting("hello"))
        label = {"metadata": {"labels": {LABEL: "goodbye"}}}
        await client.patch(Cluster, "demo", namespace, label)
        await until(lambda: client.find(ConfigMap, "greeting", "default"), is_greeting("goodbye"))
        events = await client.list(Event, namespace)
        assert {event.reason for event in events.items} == {"Greeted"}


def is_greeting(text: str) -> Callable[[ConfigMap | None], bool]:
    return lambda found: found is not None and found.data == {"text": text}
