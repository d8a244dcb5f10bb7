"""An environment that was stopped starts again with its clusters."""

import re

import pytest
from capelin.api.core import Namespace
from capelin.client import Client, Config

from .homes import Home

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


async def test_cluster_api_connects_to_its_clusters_at_the_first_attempt(home: Home) -> None:
    """After a failed attempt, it waits for 30 seconds."""
    environment = home.environment()
    for verb in ("up", "stop"):
        ended = await home.capelin(verb)
        assert ended.code == 0, ended.err
    log = environment.processes / "cluster-api.log"
    before = log.stat().st_size
    ended = await home.capelin("start")
    assert ended.code == 0, ended.err
    kubeconfig = await home.capelin("kubeconfig", "demo")
    assert kubeconfig.code == 0, kubeconfig.err
    async with Client(Config.from_kubeconfig(kubeconfig.out.strip())) as api:
        assert await api.find(Namespace, "kube-system") is not None
    with log.open("rb") as file:
        file.seek(before)
        attempts = re.findall(rb'"(Connected|Connect failed)"', file.read())
    assert attempts == [b"Connected"]
