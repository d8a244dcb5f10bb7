"""Helm charts as sources: the arguments of Helm, and the limits of its process.

Programs in Python take Helm's place. `tests/integration/test_add_on_sources.py` runs Helm itself.
"""

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from capelin.api.core import ConfigMap, Namespace, Secret
from capelin.client import read_endpoints
from capelin_lifecycle.actions import RUNNERS, charts
from capelin_lifecycle.actions.apply import placed
from capelin_lifecycle.actions.artifacts import ARTIFACTS
from capelin_lifecycle.actions.charts import arguments
from capelin_lifecycle.actions.sources import source_problems
from capelin_lifecycle.api.actions import Chart
from capelin_lifecycle.policies.verdict import Verdict

from .factories import World, known
from .registry_server import CHART, archive_of, registry

ARCHIVE = archive_of({"addon/Chart.yaml": b"name: addon\n"})
ADDON = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: addon}\n"
RENDERS = f"""
import sys
values = sys.stdin.read()
print("---\\n# Source: addon/templates/a.yaml")
print({ADDON!r} + "data: {{values: '" + values + "', arguments: '" + " ".join(sys.argv[1:]) + "'}}")
print("---\\n# Source: addon/templates/empty.yaml")
print("---\\napiVersion: v1\\nkind: Namespace\\nmetadata: {{name: addons}}")
"""


@pytest.fixture(autouse=True)
def _not_configured() -> Generator[None]:
    yield
    ARTIFACTS.configure((), None)


def use_helm(folder: Path, script: str) -> Path:
    """Use a program in Python instead of Helm. It counts its runs."""
    program = folder / "helm"
    count = f"import os\nos.mkdir({str(folder)!r} + '/run-' + str(os.getpid()))\n"
    program.write_text(f"#!{sys.executable}\n{count}{script}")
    program.chmod(0o755)
    ARTIFACTS.configure((), program)
    return program


def runs(folder: Path) -> int:
    return len([*folder.glob("run-*")])


def world_with(*keys: str) -> World:
    world = World()
    content = ARCHIVE if keys else b""
    world.client.add(Secret.of("addon", "team", data=dict.fromkeys(keys, content)))
    return world


async def step(world: World, **chart: Any) -> Verdict:
    source = {"secret": "addon", "chart": {"release": "one", **chart}}
    run = world.run(known("addon", action={"apply": {"sources": [source]}}))
    outcome = await RUNNERS["apply"].reconcile(run)
    if outcome.phase == "Running":
        outcome = await RUNNERS["apply"].reconcile(world.again(run, outcome))
    return outcome


async def test_a_chart_is_rendered_once_and_applied_in_its_namespace(tmp_path: Path) -> None:
    use_helm(tmp_path, RENDERS)
    world = world_with("chart.tgz")
    outcome = await step(world, namespace="addons", values={"a": 1})
    assert (outcome.phase, outcome.message) == ("Done", "2 objects are applied and ready")
    applied = await world.workload.get(ConfigMap, "addon", "addons")
    assert applied.data["values"] == '{"a":1}'
    assert applied.data["arguments"].startswith("template one /")
    assert "--namespace=addons " in applied.data["arguments"]
    assert applied.data["arguments"].endswith(" --kube-version=v1.34.4")
    assert await world.workload.find(Namespace, "addons") is not None
    # Two steps needed the manifests.
    assert runs(tmp_path) == 1


async def test_an_archive_may_come_from_a_config_map_and_a_registry(tmp_path: Path) -> None:
    program = use_helm(tmp_path, RENDERS)
    world = World()
    world.client.add(ConfigMap.of("addon", "team", binary_data={"chart.tgz": ARCHIVE}))
    source: dict[str, Any] = {"configMap": "addon", "chart": {"release": "one"}}
    run = world.run(known("addon", action={"apply": {"sources": [source]}}))
    assert (await RUNNERS["apply"].reconcile(run)).phase == "Running"
    async with registry() as server:
        ARTIFACTS.configure(read_endpoints(server.address), program)
        source = {"oci": {"reference": server.push((CHART, ARCHIVE))}, "chart": {"release": "one"}}
        run = World().run(known("addon", action={"apply": {"sources": [source]}}))
        assert (await RUNNERS["apply"].reconcile(run)).phase == "Running"
        source["oci"] = {"reference": server.push(("application/yaml", b"{}"))}
        run = World().run(known("addon", action={"apply": {"sources": [source]}}))
        assert "it is not a Helm chart" in (await RUNNERS["apply"].reconcile(run)).message


async def test_charts_are_off_by_default(tmp_path: Path) -> None:
    world = world_with("chart.tgz")
    problem = "Secret team/addon cannot be used: charts need the option --helm of the extension"
    assert (await step(world)).message == problem
    source = {"secret": "addon", "chart": {"release": "one"}}
    policy = known("addon", action={"apply": {"sources": [source]}})
    assert await source_problems(world.client, policy, "system") == [problem]
    # A check renders nothing.
    use_helm(tmp_path, RENDERS)
    assert await source_problems(world.client, policy, "system") == []
    assert runs(tmp_path) == 0


@pytest.mark.parametrize("keys", [(), ("a", "b")])
async def test_a_source_with_a_chart_has_one_key(tmp_path: Path, keys: tuple[str, ...]) -> None:
    use_helm(tmp_path, RENDERS)
    assert "it needs one key with the archive" in (await step(world_with(*keys))).message


def test_helm_reads_nothing_but_the_archive_and_the_values() -> None:
    options = arguments(Path("/a.tgz"), Chart(release="one"), "")
    # A schema may refer to files and URLs. Hooks are not objects of the add-on.
    assert {"--skip-schema-validation", "--no-hooks", "--values=-"} <= {*options}
    assert not any(option.startswith("--kube-version") for option in options)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("sys.stderr.write('warning\\nError: no such value\\n'); sys.exit(1)", ": Error: no such"),
        ("while True: pass", "takes more than 1 s of CPU time, or memory"),
        ("x = bytearray(2 ** 30)", "cannot render the chart"),
        ("print('a' * 5 * 2 ** 20)", "the chart renders more than 4 MiB"),
        ("os.write(os.open(__file__ + '.x', os.O_CREAT | os.O_WRONLY), b'x')", "cannot render"),
        ("time.sleep(60)", "does not end within 1 s"),
        ("print('a: [')", "a document of Secret team/addon contains no valid manifests"),
        ("print('a: &a 1')", "anchors"),
    ],
)
async def test_a_chart_that_is_not_rendered(
    tmp_path: Path, script: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_helm(tmp_path, f"import sys, time\n{script}")
    monkeypatch.setattr(charts, "_CPU_SECONDS", 1)
    if "sleep" in script:
        monkeypatch.setattr(charts, "_WALL_SECONDS", 1.0)
    world = world_with("chart.tgz")
    assert problem in (await step(world)).message
    # A failure does not take the turns of other policies with every step.
    assert problem in (await step(world)).message
    assert runs(tmp_path) == 1


async def test_helm_gets_no_credentials_of_the_extension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    names = "'+'.join(sorted(set(os.environ) - {'LC_CTYPE'}))"
    use_helm(tmp_path, f"print({ADDON!r} + 'data: {{names: ' + {names} + '}}')")
    world = world_with("chart.tgz")
    await step(world)
    applied = await world.workload.get(ConfigMap, "addon", "default")
    assert applied.data == {"names": "GOMAXPROCS+GOMEMLIMIT+HOME+KUBECONFIG"}


async def test_objects_without_a_namespace_get_one_if_their_kind_needs_it() -> None:
    world = World()

    def manifest(api_version: str, kind: str, **more: Any) -> tuple[dict[str, Any], str]:
        return {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {"name": "a"},
            **more,
        }, "addons"

    def definition(kind: str, scope: str) -> tuple[dict[str, Any], str]:
        spec = {"group": "example.com", "names": {"kind": kind}, "scope": scope}
        return manifest("apiextensions.k8s.io/v1", "CustomResourceDefinition", spec=spec)

    found = await placed(
        world.workload,
        [
            manifest("v1", "ConfigMap"),
            manifest("v1", "Namespace"),
            definition("Shoal", "Cluster"),
            definition("Fish", "Namespaced"),
            manifest("example.com/v1", "Shoal"),
            manifest("example.com/v1", "Fish"),
            manifest("example.com/v1", "Unheard"),
        ],
    )
    namespaced = [each["kind"] for each in found if each["metadata"].get("namespace") == "addons"]
    assert namespaced == ["ConfigMap", "Fish", "Unheard"]


async def test_the_kernel_ends_helm_first_if_memory_is_short(tmp_path: Path) -> None:
    score = "open('/proc/self/oom_score_adj').read().strip()"
    use_helm(tmp_path, f"print({ADDON!r} + 'data: {{score: \"' + {score} + '\"}}')")
    world = world_with("chart.tgz")
    await step(world)
    applied = await world.workload.get(ConfigMap, "addon", "default")
    assert applied.data == {"score": "1000"}
