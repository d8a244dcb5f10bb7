"""What the charts render, taken by a real API server as a dry run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.api.core import Namespace
from capelin.client import Client, Config, Invalid
from capelin.embedded.binaries import Binaries
from capelin_infra.release.components import render_chart
from capelin_infra.release.our_charts import our_charts

pytestmark = [pytest.mark.needs_programs("helm"), pytest.mark.timeout(300)]

EVERYTHING = {
    "podDisruptionBudget": {"enabled": True},
    "networkPolicy": {"enabled": True},
    "metrics": {"dashboard": {"enabled": True}},
    "watch": {"namespace": "default"},
    "replicas": 3,
}
CHARTS = our_charts("0.1.0")


async def rendered(name: str, namespace: str) -> list[Unstructured]:
    values: dict[str, Any] = EVERYTHING if "files/rules.yaml" in CHARTS[name].files else {}
    if name == "capelin-lifecycle":
        values = {key: value for key, value in values.items() if key != "watch"}
        # cert-manager's kinds are not there to be asked.
        values["certManager"] = {"enabled": False}
    return await render_chart(CHARTS[name], "capelin", namespace, Binaries(), values)


@pytest.mark.parametrize("name", CHARTS)
async def test_an_api_server_takes_what_a_chart_renders(
    name: str, kubeconfig: Path, namespace: str, install_crds: Callable[..., None]
) -> None:
    install_crds("extensionconfigs.runtime.cluster.x-k8s.io")
    objects = await rendered(name, namespace)
    async with Client(Config.from_kubeconfig(kubeconfig), manager="helm") as client:
        for obj in objects:
            taken = await client.apply(obj, dry_run=True)
            assert taken["metadata"]["name"] == obj["metadata"]["name"]


async def test_it_would_refuse_what_is_wrong(kubeconfig: Path, namespace: str) -> None:
    (deployment,) = (
        obj
        for obj in await rendered("capelin-machine-pool", namespace)
        if obj["kind"] == "Deployment"
    )
    deployment["spec"]["template"]["spec"]["containers"][0]["ports"][0]["name"] = "no such port!"
    async with Client(Config.from_kubeconfig(kubeconfig), manager="helm") as client:
        await client.apply(Namespace.of(namespace))
        with pytest.raises(Invalid):
            await client.apply(deployment, dry_run=True)
