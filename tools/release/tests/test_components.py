"""Component files: each rule of clusterctl's contract, and equality with the charts."""

import re
from collections.abc import Callable
from typing import Any, Final, cast

import pytest
from capelin.api import Unstructured, plural_of
from capelin.contract import PROVIDER_LABEL
from capelin.provider import Provider
from capelin.versions import Version
from capelin.yaml import read_all_yaml, read_yaml
from capelin_embedded.binaries import Binaries
from capelin_embedded.management import render_template
from capelin_lifecycle.provider import OPTIONAL_RESOURCES
from capelin_release.charts import Chart
from capelin_release.components import (
    FILES,
    component_objects,
    escape,
    metadata_file,
    render_chart,
    render_components,
    variable_name,
    variables_of,
)
from capelin_release.our_charts import our_charts, our_providers
from capelin_release.tools import HELM

pytestmark = [pytest.mark.needs_programs(HELM), pytest.mark.timeout(300)]

PROVIDERS: Final = our_providers()
CHARTS: Final = our_charts("0.1.0")
_TEXTS: dict[str, str] = {}

Objects = list[Unstructured]


def charts_of(name: str) -> list[Chart]:
    return [CHARTS[name], CHARTS["capelin-crds"]]


async def text_of(name: str) -> str:
    """A provider's component file, rendered once."""
    if name not in _TEXTS:
        _TEXTS[name] = await render_components(PROVIDERS[name], charts_of(name), Binaries())
    return _TEXTS[name]


def named(objects: Objects, *kinds: str) -> Objects:
    return [obj for obj in objects if obj["kind"] in kinds]


def namespaces(objects: Objects) -> bool:
    """3.2: one Namespace, and every namespaced object is in it."""
    (namespace,) = named(objects, "Namespace")
    inside = {obj["metadata"]["namespace"] for obj in objects if "namespace" in obj["metadata"]}
    return inside == {namespace["metadata"]["name"]}


def manager_container(objects: Objects) -> bool:
    """3.3: a Deployment whose container has the name `manager`."""
    (deployment,) = named(objects, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    return [container["name"] for container in pod["containers"]] == ["manager"]


def namespace_flag(objects: Objects) -> bool:
    """3.3: a manager of controllers accepts --namespace, and by default watches all namespaces."""
    (deployment,) = named(objects, "Deployment")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    return "--namespace=" in arguments or bool(named(objects, "ExtensionConfig"))


def canonical_images(objects: Objects) -> bool:
    """3.3: images have a registry, a path and a tag or digest."""
    (deployment,) = named(objects, "Deployment")
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    return bool(re.fullmatch(r"[a-z0-9.-]+\.[a-z]+(/[a-z0-9-]+)+(:v[0-9.]+|@sha256:\w+)", image))


def provider_labels(objects: Objects) -> bool:
    """3.5: every object has the label with the provider's name."""
    values = {obj["metadata"]["labels"][PROVIDER_LABEL] for obj in objects}
    (namespace,) = named(objects, "Namespace")
    return {f"{value}-system" for value in values} == {namespace["metadata"]["name"]}


def contract_labels(objects: Objects) -> bool:
    """D.1: CRDs name the versions that serve each contract, and have canonical names."""
    return all(
        (
            not obj["spec"]["group"].startswith(("controlplane.", "infrastructure."))
            or obj["metadata"]["labels"]["cluster.x-k8s.io/v1beta2"] in versions
        )
        and obj["metadata"]["name"] == f"{names['plural']}.{obj['spec']['group']}"
        and names["plural"] == plural_of(names["kind"])
        for obj in named(objects, "CustomResourceDefinition")
        for versions in [[version["name"] for version in obj["spec"]["versions"]]]
        for names in [obj["spec"]["names"]]
    )


def removable(objects: Objects) -> bool:
    """clusterctl removes cluster roles only if their names begin with the namespace's name."""
    (namespace,) = named(objects, "Namespace")
    roles = named(objects, "ClusterRole", "ClusterRoleBinding")
    prefix = f"{namespace['metadata']['name']}-"
    return bool(roles) and all(obj["metadata"]["name"].startswith(prefix) for obj in roles)


def subjects_of_the_provider(objects: Objects) -> bool:
    """7.1: clusterctl rewrites the namespace of every subject, so none may be of another's."""
    (namespace,) = named(objects, "Namespace")
    return all(
        subject.get("namespace", namespace["metadata"]["name"]) == namespace["metadata"]["name"]
        for obj in named(objects, "ClusterRoleBinding", "RoleBinding")
        for subject in obj["subjects"]
    )


def self_contained(objects: Objects) -> bool:
    """7.3: all referenced roles and accounts exist."""
    there = {(obj["kind"], obj["metadata"]["name"]) for obj in objects}
    (deployment,) = named(objects, "Deployment")
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    roles = {
        (obj["roleRef"]["kind"], obj["roleRef"]["name"])
        for obj in named(objects, "ClusterRoleBinding", "RoleBinding")
    }
    return {("ServiceAccount", account), *roles} <= there


def restricted(objects: Objects) -> bool:
    """The namespace enforces the restricted standard of pod security."""
    (namespace,) = named(objects, "Namespace")
    return namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


RULES: Final[tuple[Callable[[Objects], bool], ...]] = (
    namespaces,
    manager_container,
    namespace_flag,
    canonical_images,
    provider_labels,
    contract_labels,
    removable,
    subjects_of_the_provider,
    self_contained,
    restricted,
)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", PROVIDERS)
async def test_rules_of_clusterctl(name: str, rule: Callable[[Objects], bool]) -> None:
    assert rule(render_template(await text_of(name), {})), rule.__doc__


def test_files_have_the_names_that_clusterctl_recommends() -> None:
    assert [FILES[provider.type] for provider in PROVIDERS.values()] == [
        "control-plane-components.yaml",
        "infrastructure-components.yaml",
        "runtime-extension-components.yaml",
    ]


def normal(objects: Objects) -> dict[tuple[str, str], Any]:
    """Objects by kind and name, without null fields."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            return {key: cleaned(item) for key, item in fields.items() if item is not None}
        if isinstance(value, list):
            return [cleaned(item) for item in cast("list[Any]", value)]
        return value

    return {(obj["kind"], obj["metadata"]["name"]): cleaned(obj) for obj in objects}


async def of_chart(name: str, values: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """The charts' objects in the form of the component file."""
    provider = PROVIDERS[name]
    changed_values = {"fullnameOverride": provider.label, **values}
    objects: Objects = []
    for chart, chosen in zip(charts_of(name), (changed_values, {}), strict=True):
        objects += await render_chart(chart, provider.label, provider.namespace, Binaries(), chosen)
    return normal(component_objects(provider, objects))


async def of_file(name: str, variables: dict[str, str]) -> dict[tuple[str, str], Any]:
    """The objects that clusterctl would install, except the Namespace."""
    objects = render_template(await text_of(name), variables)
    return normal([obj for obj in objects if obj["kind"] != "Namespace"])


@pytest.mark.parametrize("name", PROVIDERS)
async def test_charts_and_component_files_are_equal_by_default(name: str) -> None:
    assert await of_file(name, {}) == await of_chart(name, {})


@pytest.mark.parametrize("name", PROVIDERS)
async def test_charts_and_component_files_are_equal_when_tuned(name: str) -> None:
    chosen: dict[str, tuple[Any, str]] = {
        "CONCURRENCY": (5, "5"),
        "SYNC_PERIOD": ("1h", "1h"),
        "VERBOSITY": (2, "2"),
    }
    provider = PROVIDERS[name]
    values: dict[str, Any] = {}
    variables: dict[str, str] = {}
    for variable in variables_of(provider):
        value, variables[variable_name(provider, variable)] = chosen[variable.name]
        *parents, last = variable.value.split(".")
        target = values
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    tuned = await of_chart(name, values)
    assert await of_file(name, variables) == tuned
    assert (tuned != await of_chart(name, {})) is bool(variables)


@pytest.mark.parametrize("name", PROVIDERS)
async def test_variables_stand_only_where_a_deployment_has_text(name: str) -> None:
    """`clusterctl generate provider --describe` reads the Deployment with variables in it."""
    (deployment,) = (
        obj for obj in read_all_yaml(await text_of(name)) if obj["kind"] == "Deployment"
    )
    template = deployment["spec"]["template"]["spec"]
    (container,) = template["containers"]
    places = str([container.pop("args"), container.pop("env")]).count(":=")
    assert places == len(variables_of(PROVIDERS[name]))
    assert "${" not in str(deployment)


@pytest.mark.parametrize("name", PROVIDERS)
async def test_variables_have_defaults_and_the_provider_s_prefix(name: str) -> None:
    text = await text_of(name)
    variables = re.findall(r"(?<!\$)\$\{([^}]*)\}", text)
    prefix = {
        "capelin-control-plane": "CAPELIN_CONTROL_PLANE",
        "capelin-machine-pool": "CAPELIN_INFRASTRUCTURE",
        "capelin-lifecycle": "LIFECYCLE_RUNTIME_EXTENSION",
    }
    assert len(variables) == len(variables_of(PROVIDERS[name]))
    assert all(re.fullmatch(rf"{prefix[name]}_[A-Z_]+:=[\w.]+", found) for found in variables)


def uses(rules: Objects) -> set[tuple[str, str, str]]:
    """Permissions of rules: group, resource and verb."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_permissions_are_those_that_the_reconcilers_declare() -> None:
    """The optional ones are in files of their own."""
    for name, provider in PROVIDERS.items():
        files = CHARTS[name].files
        optional = [f"files/{role}-rules.yaml" for role in OPTIONAL_RESOURCES]
        rules = [
            read_yaml(files[file]) for file in ["files/rules.yaml", *optional] if file in files
        ]
        assert uses([rule for part in rules for rule in part]) == uses([*provider.rules])
        assert sum(len(uses(part)) for part in rules) == len(uses([*provider.rules]))


def test_every_crd_has_a_single_storage_version() -> None:
    """Decision 21 lists the requirements of a second version."""
    crds = [crd for provider in PROVIDERS.values() for crd in provider.crds]
    assert crds
    for crd in crds:
        assert [version["storage"] for version in crd["spec"]["versions"]] == [True]


@pytest.mark.parametrize("text", ["a$", "^$", "$a", "${A}", "$${A}", "$$", "$$$", "$${", "{$}"])
def test_substitution_restores_escaped_text(text: str) -> None:
    (value,) = render_template(f"- '{escape(text)}'", {})[0] if text else [""]
    assert value == text


def test_the_metadata_has_a_series_for_the_version() -> None:
    file = read_yaml(metadata_file({(0, 1): "v1beta2", (0, 2): "v1beta2"}))
    assert file["apiVersion"] == "clusterctl.cluster.x-k8s.io/v1alpha3"
    version = Version.parse(PROVIDERS["capelin-control-plane"].version)
    series = {
        (entry["major"], entry["minor"]): entry["contract"] for entry in file["releaseSeries"]
    }
    assert series[version.major, version.minor] == "v1beta2"


@pytest.mark.parametrize(
    ("kind", "words"), [("IPAMProvider", "IPAM"), ("ControlPlaneProvider", "CONTROL_PLANE")]
)
def test_names_of_variables_contain_provider_and_type(kind: Any, words: str) -> None:
    provider = Provider("my-fish", kind, "v1.0.0", "fish")
    names = {variable_name(provider, variable) for variable in variables_of(provider)}
    assert f"MY_FISH_{words}_CONCURRENCY" in names
