"""Static checks of the components and metadata that clusterctl installs for a provider."""

import re
from collections.abc import Callable, Iterator
from typing import Final, get_args

from capelin.api import Unstructured, plural_of
from capelin.contract import PROVIDER_LABEL, ProviderType, provider_label

from capelin_conformance.providers.fields import items_at, mapping_at
from capelin_conformance.providers.manifests import GENERATIONS, ProviderManifests
from capelin_conformance.providers.rules import NotApplicableError, Rule, rule

ManifestsCheck = Callable[[ProviderManifests], Iterator[str]]
"""Yields the problems of a provider's manifests."""

_VARIABLE: Final = re.compile(r"\$\{[^}]*\}?")
# A name, or a name with one of the functions of drone/envsubst.
_SUPPORTED: Final = re.compile(r"\$\{(\s*\w+\s*|#?[A-Za-z_]\w*([:=+?/#%^,-].*)?)\}", re.DOTALL)
_NAMESPACED: Final = frozenset(
    {
        "Certificate",
        "ConfigMap",
        "Deployment",
        "Issuer",
        "Role",
        "RoleBinding",
        "Secret",
        "Service",
        "ServiceAccount",
    }
)
_PREFIXES: Final = tuple(
    provider_label(type_, "") for type_ in get_args(ProviderType) if type_ != "CoreProvider"
)
_FILES: Final = tuple(f"{prefix}components.yaml" for prefix in ("core-", *_PREFIXES))
_SKIP_CRD_NAME: Final = "clusterctl.cluster.x-k8s.io/skip-crd-name-preflight-check"


@rule("clusterctl")
def metadata(manifests: ProviderManifests) -> Iterator[str]:
    """The file metadata.yaml maps each release series to a version of the contract.

    Source: clusterctl#metadata-yaml
    Fix: add metadata.yaml with kind Metadata, and an entry in releaseSeries for each minor version.
    """
    found = _metadata(manifests)
    expected = ("clusterctl.cluster.x-k8s.io/v1alpha3", "Metadata")
    actual = (found.get("apiVersion"), found.get("kind"))
    if actual != expected:
        yield f"metadata.yaml is {actual[0]} {actual[1]}, not {expected[0]} {expected[1]}"
    series = _series(found)
    if not series:
        yield "metadata.yaml has no releaseSeries"
    for entry in series:
        numbers = [entry.get("major"), entry.get("minor")]
        is_valid = all(isinstance(n, int) and not isinstance(n, bool) for n in numbers)
        if not is_valid or not isinstance(entry.get("contract"), str):
            yield f"a release series needs major, minor and contract, and one is {entry}"


@rule("clusterctl")
def metadata_contract(manifests: ProviderManifests) -> Iterator[str]:
    """The newest release series has a contract that labels of the CRDs name.

    Source: clusterctl#metadata-yaml
    Fix: correct the contract in metadata.yaml, or the labels of the CRDs.
    """
    labelled = {
        generation
        for kind in manifests.kinds
        for generation in GENERATIONS
        if kind.contract_versions(generation)
    }
    if not labelled:
        raise NotApplicableError("no CRD has a label of a contract")
    series = [
        entry
        for entry in _series(_metadata(manifests))
        if all(isinstance(entry.get(key), int) for key in ("major", "minor"))
    ]
    if not series:
        raise NotApplicableError("metadata.yaml has no release series")
    newest = max(series, key=lambda entry: (entry["major"], entry["minor"]))
    if newest.get("contract") not in labelled:
        names = " and ".join(sorted(labelled))
        yield f"metadata.yaml has the contract {newest.get('contract')}, and the CRDs have {names}"


@rule("clusterctl")
def crd_names(manifests: ProviderManifests) -> Iterator[str]:
    """CRDs have the names that Cluster API computes, or an annotation that skips the check.

    Source: clusterctl#components-yaml
    Fix: rename the kind or its plural. For kinds that core never reads, add the annotation
    clusterctl.cluster.x-k8s.io/skip-crd-name-preflight-check.
    """
    for kind in manifests.kinds:
        annotations = mapping_at(kind.definition, "metadata.annotations")
        expected = f"{plural_of(kind.kind)}.{kind.group}"
        if kind.crd_name != expected and _SKIP_CRD_NAME not in annotations:
            yield f"{kind.crd_name} should be {expected}"


@rule("clusterctl")
def namespace(manifests: ProviderManifests) -> Iterator[str]:
    """The components have at most one Namespace, and all namespaced objects are in it.

    Source: clusterctl#target-namespace
    Fix: keep one Namespace, and set metadata.namespace of the other objects to its name.
    """
    names = [obj["metadata"].get("name") for obj in manifests.of_kind("Namespace")]
    if not names:
        raise NotApplicableError("clusterctl init requires --target-namespace for the components")
    if len(names) > 1:
        yield f"there are {len(names)} Namespaces"
        return
    for obj in manifests.of_kind(*_NAMESPACED):
        actual = obj["metadata"].get("namespace")
        if actual != names[0]:
            yield f"{_name(obj)} is in namespace {actual}, not in {names[0]}"


@rule("clusterctl", advice=True)
def provider_labels(manifests: ProviderManifests) -> Iterator[str]:
    """All components have the label cluster.x-k8s.io/provider with the name of the provider.

    Source: clusterctl#labels
    Fix: add the label, with a value such as infrastructure-foo, to all components.
    """
    if manifests.is_installed_package:
        raise NotApplicableError("Capelin labels the components of an installed package")
    values: set[str] = set()
    for obj in manifests.components:
        value = mapping_at(obj, "metadata.labels").get(PROVIDER_LABEL)
        if value is None:
            yield f"{_name(obj)} has no label {PROVIDER_LABEL}"
        else:
            values.add(str(value))
    for value in sorted(values):
        if value != "cluster-api" and not value.startswith(_PREFIXES):
            yield f"{value} does not begin with the type of a provider"
    if len(values) > 1:
        yield f"the components name several providers: {', '.join(sorted(values))}"


@rule("clusterctl")
def manager_container(manifests: ProviderManifests) -> Iterator[str]:
    """A Deployment runs the provider in a container with the name manager.

    Source: clusterctl#controllers--watching-namespace
    Fix: rename the container to manager.
    """
    deployments = _deployments(manifests)
    for deployment in deployments:
        names = [container.get("name") for container in _containers(deployment)]
        if "manager" not in names:
            yield f"{_name(deployment)} has the containers {', '.join(map(str, names)) or 'none'}"


@rule("clusterctl", advice=True)
def canonical_images(manifests: ProviderManifests) -> Iterator[str]:
    """Images have canonical names: with a registry, and with a tag other than latest or a digest.

    Source: clusterctl#controllers--watching-namespace
    Fix: write the whole name, such as registry.example.com/foo/manager:v1.0.0.
    """
    for deployment in _deployments(manifests):
        for container in _containers(deployment):
            image = str(container.get("image", ""))
            if "${" not in image and (problem := image_problem(image)):
                yield f"{_name(deployment)}: the image {image} {problem}"


@rule("clusterctl")
def variables(manifests: ProviderManifests) -> Iterator[str]:
    """Variables have a form that clusterctl can substitute, such as ${NAME} or ${NAME:=default}.

    Source: clusterctl#variables
    Fix: use one of these forms. Write a dollar sign as two of them.
    """
    if not manifests.texts:
        raise NotApplicableError("an installed package has no component files")
    for file, text in manifests.texts.items():
        for match in _VARIABLE.finditer(text.replace("$$", "")):
            if not _SUPPORTED.fullmatch(match[0]):
                yield f"{file}: {match[0]}"


@rule("clusterctl", advice=True)
def file_name(manifests: ProviderManifests) -> Iterator[str]:
    """The file with the components has the name of the provider's type.

    Source: clusterctl#naming-conventions
    Fix: rename the file, for example to infrastructure-components.yaml.
    """
    if not manifests.texts:
        raise NotApplicableError("an installed package has no component files")
    if not {*manifests.texts} & {*_FILES}:
        yield f"no file has a name such as {', '.join(_FILES[:4])}"


@rule("clusterctl", advice=True)
def wildcards(manifests: ProviderManifests) -> Iterator[str]:
    """Roles name the groups, resources and verbs that the provider needs, without wildcards.

    Source: https://kubernetes.io/docs/concepts/security/rbac-good-practices/
    Fix: list them. For other providers' kinds, let their ClusterRoles aggregate.
    """
    for role in manifests.of_kind("ClusterRole", "Role"):
        for entry in role.get("rules") or ():
            keys = ("apiGroups", "resources", "verbs")
            if found := [key for key in keys if "*" in (entry.get(key) or ())]:
                yield f"{_name(role)} has a wildcard in {' and '.join(found)}"


def image_problem(image: str) -> str | None:
    """Why the name of an image is not canonical."""
    path, _, digest = image.partition("@")
    registry, slash, _ = path.partition("/")
    if not slash or not ("." in registry or ":" in registry or registry == "localhost"):
        return "names no registry"
    tag = path.rpartition("/")[2].partition(":")[2]
    if tag == "latest" or not (tag or digest):
        return "has no tag other than latest"
    return None


def _metadata(manifests: ProviderManifests) -> Unstructured:
    if manifests.is_installed_package:
        raise NotApplicableError("an installed package has no metadata.yaml; check its release")
    return manifests.metadata or {}


def _series(metadata: Unstructured) -> list[Unstructured]:
    return [entry for entry in items_at(metadata, "releaseSeries") if isinstance(entry, dict)]


def _deployments(manifests: ProviderManifests) -> list[Unstructured]:
    found = manifests.of_kind("Deployment")
    if not found:
        raise NotApplicableError("the components have no Deployment")
    return found


def _containers(deployment: Unstructured) -> list[Unstructured]:
    return items_at(deployment, "spec.template.spec.containers")


def _name(obj: Unstructured) -> str:
    return f"{obj['kind']} {obj['metadata'].get('name')}"


COMPONENT_RULES: Final[tuple[Rule[ManifestsCheck], ...]] = (
    metadata,
    metadata_contract,
    crd_names,
    namespace,
    provider_labels,
    manager_container,
    canonical_images,
    variables,
    file_name,
    wildcards,
)
