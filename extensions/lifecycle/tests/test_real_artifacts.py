"""Artifacts that ORAS pushes and charts that Helm pushes, from a real registry."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from capelin.api.core import ConfigMap
from capelin.client import read_endpoints
from capelin_embedded.binaries import Binaries
from capelin_lifecycle.actions import RUNNERS
from capelin_lifecycle.actions.artifacts import ARTIFACTS
from capelin_lifecycle.policies.verdict import Verdict
from capelin_release.tools import HELM

from tests.registry.distribution import DISTRIBUTION, ORAS, Registry, distribution, run

from .factories import World, known

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.needs_programs(DISTRIBUTION, ORAS, HELM),
]

ADDON = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: kube-system}\n"
CHART = {
    "Chart.yaml": "apiVersion: v2\nname: addon\nversion: 1.0.0\nkubeVersion: '>=1.34.0-0'\n",
    "values.yaml": "replicas: 1\n",
    # Helm would read the file, and show its errors.
    "values.schema.json": '{"$ref": "file:///etc/hostname"}',
    "crds/shoals.yaml": (
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"
        "metadata: {name: shoals.example.com}\n"
        "spec: {group: example.com, scope: Cluster, names: {kind: Shoal}}\n"
        "status: {conditions: [{type: Established, status: 'True'}]}\n"
    ),
    "templates/config.yaml": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}-config}\n"
        "data:\n  replicas: {{ .Values.replicas | quote }}\n"
        "  version: {{ .Capabilities.KubeVersion.Version }}\n"
        "  namespace: {{ .Release.Namespace }}\n"
        '  secret: {{ (lookup "v1" "Secret" "a" "b") | toJson | quote }}\n'
        '  address: {{ getHostByName "localhost" | quote }}\n'
    ),
    "templates/hook.yaml": (
        "apiVersion: v1\nkind: ConfigMap\n"
        "metadata: {name: hook, annotations: {helm.sh/hook: pre-install}}\n"
    ),
}


@pytest.fixture(scope="module")
async def registry(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Registry]:
    async with distribution(tmp_path_factory.mktemp("registry")) as registry:
        yield registry
        ARTIFACTS.configure((), None)


@pytest.fixture(scope="module")
def chart(registry: Registry) -> Path:
    folder = registry.folder / "addon"
    for name, content in CHART.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return folder


async def apply(world: World, source: dict[str, Any]) -> Verdict:
    step = world.run(known("addon", action={"apply": {"sources": [source]}}))
    outcome = await RUNNERS["apply"].reconcile(step)
    assert outcome.phase == "Running", outcome.message
    return await RUNNERS["apply"].reconcile(world.again(step, outcome))


async def test_files_and_folders_of_oras(registry: Registry) -> None:
    ARTIFACTS.configure(read_endpoints(registry.endpoint), None)
    single, folder = registry.folder / "single.yaml", registry.folder / "more"
    single.write_text(ADDON % "single")
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.yaml").write_text(ADDON % name)
    (folder / "README.md").write_text("{{")
    reference = await registry.push_files("addons", single, folder)
    world = World()
    outcome = await apply(world, {"oci": {"reference": reference, "caBundle": registry.ca}})
    assert (outcome.phase, outcome.message) == ("Done", "3 objects are applied and ready")


async def test_the_certificate_of_a_registry_is_verified(registry: Registry) -> None:
    ARTIFACTS.configure(read_endpoints(registry.endpoint), None)
    source = {"oci": {"reference": f"{registry.host}/addons@sha256:{'0' * 64}"}}
    step = World().run(known("addon", action={"apply": {"sources": [source]}}))
    message = (await RUNNERS["apply"].reconcile(step)).message
    assert "its certificate is not trusted" in message


async def test_a_chart_of_helm(registry: Registry, chart: Path) -> None:
    ARTIFACTS.configure(read_endpoints(registry.endpoint), await Binaries().path(HELM))
    reference = await registry.push_chart(chart)
    settings = {"release": "one", "namespace": "kube-system", "values": {"replicas": 3}}
    world = World()
    outcome = await apply(
        world, {"oci": {"reference": reference, "caBundle": registry.ca}, "chart": settings}
    )
    assert {entry.kind for entry in outcome.created or ()} == {
        "ConfigMap",
        "CustomResourceDefinition",
    }
    applied = await world.workload.get(ConfigMap, "one-config", "kube-system")
    assert applied.data == {
        "replicas": "3",
        "version": "v1.34.4",
        "namespace": "kube-system",
        "secret": "{}",
        "address": "",
    }
    assert await world.workload.find(ConfigMap, "hook", "kube-system") is None


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ range until 1000000000 }}{{ end }}", "Helm cannot render the chart"),
        ("{{ range until 99999 }}{{ range until 99999 }}{{ end }}{{ end }}", "takes|within"),
        ('{{ repeat 100000000 "aaaaaaaaaa" }}', "Helm cannot render the chart"),
        ("{{ required `a value is missing` .Values.missing }}", "a value is missing"),
        ("{{ .Files.Get `/etc/passwd` }}a: 1", "no valid manifests: each needs apiVersion"),
        ("{{ env `HOME` }}", 'function "env" not defined'),
    ],
)
async def test_a_chart_that_harms_is_not_applied(
    tmp_path: Path, template: str, problem: str
) -> None:
    program = await Binaries().path(HELM)
    ARTIFACTS.configure((), program)
    folder = tmp_path / "addon"
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: addon\nversion: 1.0.0\n")
    (folder / "templates" / "a.yaml").write_text(template)
    await run(tmp_path, program, "package", str(folder))
    world = World()
    archive = (tmp_path / "addon-1.0.0.tgz").read_bytes()
    world.client.add(ConfigMap.of("addon", "team", binary_data={"addon.tgz": archive}))
    source = {"configMap": "addon", "chart": {"release": "one"}}
    step = world.run(known("addon", action={"apply": {"sources": [source]}}))
    outcome = await RUNNERS["apply"].reconcile(step)
    assert outcome.phase == "Waiting"
    assert re.search(problem, outcome.message), outcome.message
