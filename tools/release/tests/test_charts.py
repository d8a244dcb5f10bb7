"""The charts: current, valid for Helm, and controlled by their values."""

import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.contract import PROVIDER_LABEL
from capelin.controller import diagnostics_rules, lease_rules
from capelin.errors import UserError
from capelin.provider import Provider
from capelin.yaml import read_all_yaml
from capelin_control_plane.provider import provider as control_plane
from capelin_embedded.binaries import Binaries
from capelin_machine_pool.provider import provider as machine_pool
from capelin_release.alerts import CONTROL_PLANE_ALERTS, EXTENSION_ALERTS, MANAGER_ALERTS
from capelin_release.charts import Chart, provider_chart
from capelin_release.components import helm, render_chart
from capelin_release.our_charts import our_charts, our_providers, write_tree
from capelin_release.tools import HELM, HELM_3
from capelin_release.values import Image, ManagerValues

ROOT = Path(__file__).parents[3]
CHARTS = our_charts("0.1.0")
WITH_PODS = [name for name, chart in CHARTS.items() if "files/rules.yaml" in chart.files]
EXTENSION = "capelin-lifecycle"
RENDERED: dict[tuple[str, str, str], list[Unstructured]] = {}
MANAGERS = [name for name in WITH_PODS if name != EXTENSION]

pytestmark = [pytest.mark.needs_programs(HELM), pytest.mark.timeout(300)]


def tree(folder: Path) -> dict[str, str]:
    """Every file and link in a folder, without following links."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.resolve()}"
        elif path.is_file():
            found[name] = path.read_text()
    return found


def test_the_charts_in_the_tree_are_current(tmp_path: Path) -> None:
    """Run `python -m capelin_release.our_charts` after a change of their sources."""
    write_tree(tmp_path)
    fresh = {
        name: text.replace(str(tmp_path), str(ROOT / "charts"))
        for name, text in tree(tmp_path).items()
    }
    stored = {name: text for name, text in tree(ROOT / "charts").items() if name != "README.md"}
    assert stored == fresh


@pytest.mark.parametrize("name", CHARTS)
async def test_helm_lint_accepts_the_charts(name: str, tmp_path: Path) -> None:
    folder = CHARTS[name].write(tmp_path)
    assert "0 chart(s) failed" in await helm(Binaries(), "lint", "--strict", str(folder))


async def rendered(
    chart: Chart, values: Mapping[str, Any] | None = None, release: str = "capelin"
) -> dict[tuple[str, str], Unstructured]:
    """The objects of a chart by kind and name, cached for equal values."""
    key = (chart.name, release, json.dumps(values))
    if key not in RENDERED:
        RENDERED[key] = await render_chart(chart, release, "capelin-system", Binaries(), values)
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in deepcopy(RENDERED[key])}


@pytest.mark.parametrize("name", MANAGERS)
async def test_every_value_has_its_effect(name: str) -> None:
    values: dict[str, Any] = {
        "image": {"repository": "registry.example/fish", "digest": f"sha256:{'0' * 64}"},
        "imagePullSecrets": [{"name": "pull"}],
        "replicas": 3,
        "resources": {"limits": {"memory": "1Gi"}},
        "priorityClassName": "high",
        "nodeSelector": {"disk": "fast"},
        "affinity": {"podAntiAffinity": {}},
        "tolerations": [{"operator": "Exists"}],
        "podAnnotations": {"note": "a"},
        "podLabels": {"team": "b"},
        "extraArgs": ["--grace-period=1s"],
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
        "extraVolumes": [{"name": "bundles", "persistentVolumeClaim": {"claimName": "bundles"}}],
        "extraVolumeMounts": [{"name": "bundles", "mountPath": "/bundles", "readOnly": True}],
        "watch": {"namespace": "sea", "filter": "blue"},
        "concurrency": 7,
        "syncPeriod": "1h",
        "log": {"format": "json", "verbosity": 2},
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboard": {"enabled": True},
        },
        "podDisruptionBudget": {"enabled": True},
        "networkPolicy": {"enabled": True, "from": [{"podSelector": {}}], "egress": [{}]},
    }
    objects = await rendered(CHARTS[name], values)
    template = objects["Deployment", name]["spec"]["template"]
    pod, (container,) = template["spec"], template["spec"]["containers"]
    assert objects["Deployment", name]["spec"]["replicas"] == 3
    assert container["image"] == f"registry.example/fish@sha256:{'0' * 64}"
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    assert {"--grace-period=1s", "--namespace=sea", "--watch-filter=blue"} < set(container["args"])
    assert {"--concurrency=7", "--sync-period=1h", "--log-format=json"} < set(container["args"])
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert environment == {"CAPELIN_VERBOSITY": "2", "HTTPS_PROXY": "http://proxy"}
    assert pod["volumes"][-1] == values["extraVolumes"][0]
    assert container["volumeMounts"][-1] == values["extraVolumeMounts"][0]
    assert template["metadata"]["annotations"] == {"note": "a"}
    assert template["metadata"]["labels"]["team"] == "b"
    for field in (
        "imagePullSecrets",
        "priorityClassName",
        "nodeSelector",
        "affinity",
        "tolerations",
    ):
        assert pod[field] == values[field]
    assert objects["PodDisruptionBudget", name]["spec"]["maxUnavailable"] == 1
    policy = objects["NetworkPolicy", name]["spec"]
    assert policy["ingress"][0]["from"] == [{"podSelector": {}}]
    assert policy["egress"] == [{}]
    assert objects["ServiceMonitor", name]["metadata"]["labels"]["release"] == "prometheus"
    assert objects["PrometheusRule", name]["metadata"]["labels"]["release"] == "prometheus"
    (dashboard,) = objects["ConfigMap", f"{name}-dashboard"]["data"].values()
    assert f'service=\\"{name}-metrics\\"' in dashboard
    assert all(panel["targets"][0]["expr"] for panel in json.loads(dashboard)["panels"])
    assert ("ClusterRole", f"capelin-system-{name}-manager") not in objects
    assert objects["Role", f"{name}-manager"]["metadata"]["namespace"] == "sea"


@pytest.mark.parametrize("name", MANAGERS)
async def test_a_chart_needs_no_other_product_by_default(name: str) -> None:
    kinds = {kind for kind, _ in await rendered(CHARTS[name])}
    assert kinds == {
        *("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
        *("Service", "Deployment", "PodDisruptionBudget"),
    }


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"replicas": "many"}, "replicas"),
        ({"replica": 2}, "replica"),
        ({"syncPeriod": "often"}, "syncPeriod"),
        ({"image": {"digest": "v1"}}, "digest"),
        ({"watch": {"namespaces": []}}, "namespaces"),
    ],
)
async def test_invalid_values_are_rejected(values: Mapping[str, Any], complaint: str) -> None:
    with pytest.raises(UserError) as caught:
        await rendered(CHARTS["capelin-machine-pool"], values)
    assert complaint in (caught.value.reason or "")


async def test_the_umbrella_chart_contains_its_parts_and_each_is_optional() -> None:
    everything = await rendered(CHARTS["capelin"], {"components": {"lifecycle": True}})
    parts = {
        key for name, chart in CHARTS.items() if name != "capelin" for key in await rendered(chart)
    }
    assert everything.keys() == parts
    values = {"components": {"crds": False}, "capelin-machine-pool": {"replicas": 2}}
    fewer = await rendered(CHARTS["capelin"], values)
    assert not any(kind == "CustomResourceDefinition" for kind, _ in fewer)
    assert ("Deployment", EXTENSION) not in fewer
    assert fewer["Deployment", "capelin-machine-pool"]["spec"]["replicas"] == 2


async def test_helm_upgrades_the_crds_and_uninstall_keeps_them() -> None:
    chart = CHARTS["capelin-crds"]
    assert not any(path.startswith("crds/") for path in chart.files)
    for keep in (True, False):
        kinds = [
            obj
            for (kind, _), obj in (await rendered(chart, {"keep": keep})).items()
            if kind == "CustomResourceDefinition"
        ]
        assert len(kinds) == 13
        for obj in kinds:
            annotations: dict[str, str] = obj["metadata"]["annotations"] or {}
            assert (annotations.get("helm.sh/resource-policy") == "keep") is keep


async def test_two_releases_do_not_share_cluster_scoped_objects() -> None:
    chart = CHARTS["capelin-machine-pool"]
    first, second = await rendered(chart), await rendered(chart, release="other")
    shared = {key for key in first if key[0].startswith("Cluster")} & second.keys()
    assert not shared
    assert ("Deployment", "other-capelin-machine-pool") in second


@pytest.mark.parametrize("name", WITH_PODS)
async def test_pods_satisfy_the_restricted_standard(name: str) -> None:
    pod = (await rendered(CHARTS[name]))["Deployment", name]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    assert all(volume.keys() & {"configMap", "emptyDir", "secret"} for volume in pod["volumes"])


async def test_an_extension_accepts_only_cluster_api_by_default() -> None:
    objects = await rendered(CHARTS[EXTENSION])
    pod = objects["Deployment", EXTENSION]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "--client-ca=/client-ca/ca.crt" in container["args"]
    authority = {"name": "client-ca", "configMap": {"name": "runtime-extension-client-ca"}}
    assert authority in pod["volumes"]
    (rule,) = objects["NetworkPolicy", EXTENSION]["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == ["hooks"]
    (peer,) = rule["from"]
    labels = peer["namespaceSelector"]["matchLabels"]
    assert labels == {"kubernetes.io/metadata.name": "capi-system"}
    assert objects["PodDisruptionBudget", EXTENSION]["spec"]["maxUnavailable"] == 1
    monitoring = [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    opened = await rendered(CHARTS[EXTENSION], {"networkPolicy": {"metricsFrom": monitoring}})
    _, metrics = opened["NetworkPolicy", EXTENSION]["spec"]["ingress"]
    assert [port["port"] for port in metrics["ports"]] == ["health"]
    assert metrics["from"] == monitoring


@pytest.mark.parametrize("name", WITH_PODS)
async def test_alert_rules_select_the_series_of_their_release(name: str) -> None:
    values = {"metrics": {"prometheusRule": {"enabled": True}}, "fullnameOverride": "fish"}
    objects = await rendered(CHARTS[name], values)
    (group,) = objects["PrometheusRule", "fish"]["spec"]["groups"]
    alerts = EXTENSION_ALERTS if name == EXTENSION else MANAGER_ALERTS
    if name == "capelin-control-plane":
        alerts = (*alerts, *CONTROL_PLANE_ALERTS)
    assert [rule["alert"] for rule in group["rules"]] == [alert.name for alert in alerts]
    for rule in group["rules"]:
        assert '{namespace="capelin-system",service="fish-metrics"' in rule["expr"]
        assert "JOB" not in rule["expr"]
    assert ("PrometheusRule", name) not in await rendered(CHARTS[name])


async def test_metrics_of_an_extension_need_a_token() -> None:
    values = {"metrics": {"tokenSecret": "scrapers", "serviceMonitor": {"enabled": True}}}
    objects = await rendered(CHARTS[EXTENSION], values)
    pod = objects["Deployment", EXTENSION]["spec"]["template"]["spec"]
    assert "--metrics-token-file=/metrics-token/token" in pod["containers"][0]["args"]
    volume = {"name": "metrics-token", "secret": {"secretName": "scrapers"}}
    assert volume in pod["volumes"]
    (endpoint,) = objects["ServiceMonitor", EXTENSION]["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "scrapers", "key": "token"}
    by_default = (await rendered(CHARTS[EXTENSION]))["Deployment", EXTENSION]
    assert not any(
        "metrics" in arg for arg in by_default["spec"]["template"]["spec"]["containers"][0]["args"]
    )


def rules_of(objects: Mapping[tuple[str, str], Unstructured]) -> list[Unstructured]:
    return [
        rule
        for (kind, _), obj in objects.items()
        if kind in {"ClusterRole", "Role"}
        for rule in obj["rules"]
    ]


@pytest.mark.parametrize("name", WITH_PODS)
async def test_no_rule_has_a_wildcard(name: str) -> None:
    rules = rules_of(await rendered(CHARTS[name]))
    assert rules
    fields = ("apiGroups", "resources", "verbs")
    assert not any("*" in rule.get(field, []) for rule in rules for field in fields)


Use = tuple[str, str, str]
"""An API group, a resource and a verb."""


def uses_of(rules: Iterable[Unstructured]) -> set[Use]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def documented_uses(label: str) -> set[Use]:
    """The permissions of a provider, with its optional roles, in the table of the page."""
    _, _, rest = (ROOT / "docs" / "security.md").read_text().partition("<!-- permissions -->\n")
    table, _, _ = rest.partition("<!-- end of permissions -->")
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()[2:]]
    return {
        ("" if group == "core" else group.strip("`"), resource, verb)
        for name, group, resources, verbs in rows
        if name.startswith(f"`{label}`")
        for resource in re.findall("`(.+?)`", resources.partition(" named ")[0])
        for verb in re.findall("`(.+?)`", verbs)
    }


@pytest.mark.parametrize("name", WITH_PODS)
async def test_a_chart_grants_exactly_the_documented_permissions_by_default(name: str) -> None:
    objects = await rendered(CHARTS[name])
    listed = documented_uses(our_providers()[name].label)
    granted = uses_of(rules_of(objects))
    outside = uses_of([*lease_rules("any"), *diagnostics_rules()])
    assert listed
    assert granted - outside == listed
    assert not any("*" in use for use in granted)
    assert objects["PodDisruptionBudget", name]["spec"]["maxUnavailable"] == 1
    serves_hooks = name == EXTENSION
    (container,) = objects["Deployment", name]["spec"]["template"]["spec"]["containers"]
    assert any(flag.startswith("--client-ca=") for flag in container["args"]) == serves_hooks
    assert (("NetworkPolicy", name) in objects) == serves_hooks


async def test_an_extension_needs_optional_permissions_for_jobs_secrets_and_machines() -> None:
    def bound(objects: Mapping[tuple[str, str], Unstructured]) -> set[str]:
        names = {obj["roleRef"]["name"] for (kind, _), obj in objects.items() if "Binding" in kind}
        return {
            resource
            for (_, name), obj in objects.items()
            if name in names and "rules" in obj
            for rule in obj["rules"]
            for resource in rule["resources"]
        }

    roles = {
        "jobs": {"jobs", "pods", "pods/log"},
        "secrets": {"secrets"},
        "machines": {"machines", "capelinmachines"},
    }
    optional = set[str]().union(*roles.values())
    by_default = await rendered(CHARTS[EXTENSION])
    assert not bound(by_default) & optional
    for name, resources in roles.items():
        role = by_default["ClusterRole", f"capelin-system-{EXTENSION}-{name}"]
        granted = {resource for rule in role["rules"] for resource in rule["resources"]}
        assert granted == resources
        permitted = await rendered(CHARTS[EXTENSION], {"permissions": {name: True}})
        assert bound(permitted) & optional == resources


@pytest.mark.parametrize("config", ["lifecycle", "other"])
async def test_an_extension_writes_only_its_own_extension_config(config: str) -> None:
    objects = await rendered(CHARTS[EXTENSION], {"extensionConfig": {"name": config}})
    assert ("ExtensionConfig", config) in objects
    (rule,) = [
        rule for rule in rules_of(objects) if "extensionconfigs" in rule.get("resources", [])
    ]
    assert rule["resourceNames"] == [config]
    (container,) = objects["Deployment", EXTENSION]["spec"]["template"]["spec"]["containers"]
    assert {"name": "CAPELIN_EXTENSION_CONFIG", "value": config} in container["env"]


@pytest.mark.parametrize("value", ["topologyOwned", "references", "quotaLabels"])
async def test_admission_policies_exist_unless_a_value_disables_them(value: str) -> None:
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    everything = await rendered(CHARTS["capelin-crds"])
    fewer = await rendered(CHARTS["capelin-crds"], {"admissionPolicies": {value: False}})
    suffix = {"topologyOwned": "topology-owned", "quotaLabels": "quota-labels"}.get(value, value)
    gone = everything.keys() - fewer.keys()
    assert gone
    assert {kind for kind, _ in gone} == set(kinds)
    assert all(name.endswith(f"-{suffix}") for _, name in gone)


async def test_cert_manager_issues_the_certificate_unless_the_user_provides_one() -> None:
    chart = CHARTS[EXTENSION]
    objects = await rendered(chart)
    certificate = objects["Certificate", EXTENSION]["spec"]
    assert f"{EXTENSION}.capelin-system.svc" in certificate["dnsNames"]
    config = objects["ExtensionConfig", "lifecycle"]
    service = config["spec"]["clientConfig"]["service"]
    assert objects["Service", service["name"]]["spec"]["ports"][0]["port"] == service["port"]
    injected = config["metadata"]["annotations"]["runtime.cluster.x-k8s.io/inject-ca-from-secret"]
    assert injected == f"capelin-system/{certificate['secretName']}"
    own = {"certManager": {"enabled": False}, "certificateSecret": "mine"}
    objects = await rendered(chart, own)
    assert not {"Certificate", "Issuer"} & {kind for kind, _ in objects}
    volumes = objects["Deployment", EXTENSION]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "certificate", "secret": {"secretName": "mine"}} in volumes


async def test_an_extension_config_is_removed_before_its_server(tmp_path: Path) -> None:
    folder = CHARTS[EXTENSION].write(tmp_path)
    text = await helm(Binaries(), "template", "capelin", str(folder), "--kube-version=v1.34.0")
    configs = [obj for obj in read_all_yaml(text) if obj and obj["kind"] == "ExtensionConfig"]
    hooks = [obj["metadata"]["annotations"].get("helm.sh/hook") for obj in configs]
    assert hooks == [None, "pre-delete"]
    managed, hook = configs
    assert managed["metadata"]["name"] == hook["metadata"]["name"]
    assert managed["spec"] == hook["spec"]
    policy = hook["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    assert policy == "before-hook-creation,hook-succeeded"


async def test_an_archive_is_reproducible_and_readable_by_helm(tmp_path: Path) -> None:
    chart = CHARTS["capelin-crds"]
    archive = chart.archive(modified=1_700_000_000)
    assert archive == our_charts("0.1.0")["capelin-crds"].archive(modified=1_700_000_000)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert "capelin-crds/charts/capelin-common/Chart.yaml" in tar.getnames()
        assert {entry.mtime for entry in tar} == {1_700_000_000}
    file = tmp_path / "capelin-crds-0.1.0.tgz"
    file.write_bytes(archive)
    assert "name: capelin-crds" in await helm(Binaries(), "show", "chart", str(file))


FOREIGN = Provider(
    name="fish",
    type="InfrastructureProvider",
    version="v1.2.3",
    module="fish",
    manager="fish",
    crds=[
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": "fishes.sea.example",
                "labels": {PROVIDER_LABEL: "infrastructure-fish"},
            },
            "spec": {
                "group": "sea.example",
                "names": {"plural": "fishes", "kind": "Fish"},
                "versions": [
                    {"name": "v1", "schema": {"description": "uses {{ braces }}"}},
                ],
            },
        }
    ],
)


def test_core_gets_access_to_kinds_outside_the_contracts_groups() -> None:
    roles = {role["metadata"]["name"]: role for role in FOREIGN.aggregated_roles}
    assert roles.keys() == {
        f"infrastructure-fish-system-{name}" for name in ("view", "edit", "operate", "core")
    }
    core = roles["infrastructure-fish-system-core"]
    # Environments install it as well.
    assert core in FOREIGN.components()
    assert "cluster.x-k8s.io/aggregate-to-manager" in core["metadata"]["labels"]
    assert core["rules"][0]["resources"] == ["fishes", "fishes/finalizers"]


def test_contracts_own_groups_need_no_role_for_core() -> None:
    for provider in (control_plane(), machine_pool()):
        names = [role["metadata"]["name"] for role in provider.aggregated_roles]
        assert names == [f"{provider.namespace}-{role}" for role in ("view", "edit", "operate")]


async def test_a_third_party_provider_has_one_chart_with_its_crds() -> None:
    chart = provider_chart(
        FOREIGN,
        ManagerValues(image=Image(repository="registry.example/fish")),
        name="fish",
        version="1.2.3",
        description="Fish.",
        with_kinds=True,
    )
    objects = await rendered(chart, {"metrics": {"dashboard": {"enabled": True}}}, release="fish")
    definition = objects["CustomResourceDefinition", "fishes.sea.example"]
    assert definition["spec"]["versions"][0]["schema"]["description"] == "uses {{ braces }}"
    assert definition["metadata"]["labels"][PROVIDER_LABEL] == "infrastructure-fish"
    image = objects["Deployment", "fish"]["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == "registry.example/fish:v1.2.3"
    labels = {key for obj in objects.values() for key in obj["metadata"].get("labels", {})}
    assert "app.kubernetes.io/part-of" not in labels
    (dashboard,) = objects["ConfigMap", "fish-dashboard"]["data"].values()
    assert json.loads(dashboard)["tags"] == ["cluster-api"]
    assert "--namespace infrastructure-fish-system" in chart.files["README.md"]


@pytest.mark.integration
@pytest.mark.needs_programs(HELM_3)
@pytest.mark.parametrize("name", CHARTS)
async def test_both_versions_of_helm_render_equal_objects(name: str, tmp_path: Path) -> None:
    folder = CHARTS[name].write(tmp_path)
    arguments = ("template", "capelin", str(folder), "--kube-version=v1.34.0")
    binaries = Binaries()
    newer, older = [
        {(obj["kind"], obj["metadata"]["name"]): obj for obj in read_all_yaml(text) if obj}
        for text in (
            await helm(binaries, *arguments),
            await helm(binaries, *arguments, program=HELM_3),
        )
    ]
    assert newer == older
