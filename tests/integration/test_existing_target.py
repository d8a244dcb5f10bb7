"""The command with an existing API server: install and remove."""

import os
import signal

import pytest
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, CustomResourceDefinition, Secret
from capelin.client import Client, Config
from capelin.testing.waiting import until
from capelin_embedded.apiserver import ApiServer
from capelin_embedded.management import WEBHOOKS, Environment

from tests.leftovers import mentioning

from .homes import Home, processes

pytestmark = pytest.mark.timeout(900)


def of_others(environment: Environment) -> dict[str, int]:
    """Processes of an environment without its supervisor."""
    return {name: pid for name, pid in processes(environment).items() if name != "supervisor"}


async def left_of_it(client: Client) -> list[str]:
    """Objects that only an environment adds to an API server."""
    listings = [
        *[await client.list(kind) for kind in (CustomResourceDefinition.resource, *WEBHOOKS)],
        await client.list(Secret.resource),
    ]
    return [each["metadata"]["name"] for listing in listings for each in listing.items]


async def test_existing_api_server(own_api_server: ApiServer, home: Home) -> None:
    there = ("--target", "existing", "--kubeconfig", str(own_api_server.kubeconfig))
    environment = home.environment()
    async with Client(Config.from_kubeconfig(own_api_server.kubeconfig)) as client:
        await client.apply(ConfigMap.of("theirs", "default"))
        ended = await home.capelin("up", *there, "--workers", "1")
        assert ended.code == 0, ended.err
        assert [each.name for each in (await client.list(Cluster)).items] == ["demo"]
        running = of_others(environment)
        assert "cluster-api" in running
        assert not {"etcd", "kube-apiserver", "kube-controller-manager"} & running.keys()
        who = Config.from_kubeconfig(environment.credentials / "cluster-api" / "kubeconfig").user
        assert (who.token_file, who.certificate) == (
            environment.credentials / "cluster-api" / "token",
            None,
        )

        again = await home.capelin("up", "--management-only")
        assert again.code == 0, again.err
        assert of_others(environment) == running

        other = await home.capelin("up", "-e", "other", *there)
        assert other.code == 2
        assert "Another Capelin environment, default" in other.err
        elsewhere = await home.capelin("up", "--target", "process")
        assert elsewhere.code == 2
        assert "has the target existing" in elsewhere.err

        for pid in processes(environment).values():
            os.kill(pid, signal.SIGKILL)
        revived = await home.capelin("up")
        assert revived.code == 0, revived.err
        scaled = await home.capelin("scale", "demo", "--workers", "2")
        assert scaled.code == 0, scaled.err

        hesitant = await home.capelin("down")
        assert "has workload clusters: demo" in hesitant.err
        assert hesitant.code == 2
        ended = await home.capelin("down", "--yes")
        assert ended.code == 0, ended.err
        assert mentioning(home.folder, "environ") == []
        assert list((home.folder / "capelin").iterdir()) == []
        assert await left_of_it(client) == []
        assert await client.find(ConfigMap, "theirs", "default") is not None

        repeated = await home.capelin("up", "--management-only", *there)
        assert repeated.code == 0, repeated.err
        assert (await client.list(Cluster)).items == []


async def test_down_without_the_api_server(own_api_server: ApiServer, home: Home) -> None:
    there = ("--target", "existing", "--kubeconfig", str(own_api_server.kubeconfig))
    ended = await home.capelin("up", "--management-only", *there)
    assert ended.code == 0, ended.err
    await own_api_server.stop()
    refused = await home.capelin("up", "--management-only")
    assert refused.code == 1
    assert "does not answer" in refused.err
    hesitant = await home.capelin("down")
    assert hesitant.code == 2
    assert "cannot be used now" in hesitant.err
    await own_api_server.start()

    async def is_up() -> bool:
        return '"state": "up"' in (await home.capelin("status", "-o", "json")).out

    await until(is_up)
    await own_api_server.stop()
    ended = await home.capelin("down", "--yes")
    assert ended.code == 0, ended.err
    assert mentioning(home.folder, "environ") == []
