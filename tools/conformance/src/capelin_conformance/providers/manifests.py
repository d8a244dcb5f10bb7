"""The manifests of a provider, and the kinds in them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import yaml
from capelin.api import Unstructured
from capelin.errors import InvalidInputError
from capelin.provider import Provider
from capelin.yaml import read_all_yaml

from capelin_conformance.providers.fields import mapping_at
from capelin_conformance.providers.rules import Contract

GENERATIONS: Final = ("v1beta2", "v1beta1")
"""The versions of the contracts that core supports, the preferred one first."""

_SUFFIXES: Final[dict[Contract, tuple[str, ...]]] = {
    "control-plane": ("ControlPlane",),
    "infra-cluster": ("Cluster",),
    "infra-machine": ("Machine",),
    "machine-pool": ("MachinePool",),
    "bootstrap": ("Config",),
}
_TEMPLATES: Final = re.compile(r"(cluster-template|clusterclass).*\.ya?ml")
"""Files of a release that are not components."""
_METADATA: Final = "metadata.yaml"


@dataclass(frozen=True, slots=True)
class CustomKind:
    """A kind that a CustomResourceDefinition defines."""

    definition: Unstructured

    @property
    def crd_name(self) -> str:
        return str(self.definition["metadata"].get("name", ""))

    @property
    def kind(self) -> str:
        return str(self._names.get("kind", ""))

    @property
    def list_kind(self) -> str:
        return str(self._names.get("listKind") or f"{self.kind}List")

    @property
    def plural(self) -> str:
        return str(self._names.get("plural", ""))

    @property
    def group(self) -> str:
        return str(self._spec.get("group", ""))

    @property
    def scope(self) -> str:
        return str(self._spec.get("scope", ""))

    @property
    def versions(self) -> list[Unstructured]:
        return list(self._spec.get("versions") or ())

    @property
    def served(self) -> list[str]:
        """The names of the versions that the API server serves."""
        return [str(version.get("name")) for version in self.versions if version.get("served")]

    def contract_versions(self, generation: str) -> list[str]:
        """The versions that keep a version of the contract, as the CRD's label lists them."""
        labels = mapping_at(self.definition, "metadata.labels")
        value = str(labels.get(f"cluster.x-k8s.io/{generation}") or "")
        return value.split("_") if value else []

    @property
    def generation(self) -> str:
        """The version of the contract that core uses: the newest that a label names.

        The newest of all if no label names one: other rules judge its fields then.
        """
        named = (name for name in GENERATIONS if self.contract_versions(name))
        return next(named, GENERATIONS[0])

    @property
    def contract_version(self) -> Unstructured:
        """The version that core uses. It is empty if the CRD has no versions."""
        names = self.contract_versions(self.generation)
        chosen = [version for version in self.versions if version.get("name") in names]
        return (chosen or self.versions or [{}])[-1]

    def field(self, path: str) -> Unstructured | None:
        """The schema of a field, such as `spec.replicas`. None if the kind has no such field.

        Empty for a field inside an object that preserves unknown fields.
        """
        schema = self.contract_version.get("schema", {}).get("openAPIV3Schema", {})
        for name in path.split("."):
            properties: Mapping[str, Any] = schema.get("properties") or {}
            if name in properties:
                schema = properties[name]
            elif schema.get("x-kubernetes-preserve-unknown-fields"):
                return {}
            else:
                return None
        return cast("Unstructured", schema)

    @property
    def _spec(self) -> Unstructured:
        return self.definition.get("spec") or {}

    @property
    def _names(self) -> Unstructured:
        return self._spec.get("names") or {}


@dataclass(frozen=True, slots=True)
class ProviderManifests:
    """Everything that a provider publishes for its installation."""

    components: Sequence[Unstructured]
    metadata: Unstructured | None = None
    """The content of `metadata.yaml`."""
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    """The text of each file with components, by its name."""
    is_installed_package: bool = False
    """Whether an installed Python package describes them: it has no Deployment and no files."""

    @property
    def kinds(self) -> list[CustomKind]:
        return [CustomKind(crd) for crd in self.of_kind("CustomResourceDefinition")]

    def of_kind(self, *kinds: str) -> list[Unstructured]:
        return [obj for obj in self.components if obj["kind"] in kinds]

    def find_kind(self, name: str) -> CustomKind | None:
        return next((kind for kind in self.kinds if kind.kind == name), None)

    def kind_of(self, contract: Contract, name: str | None = None) -> CustomKind:
        """The kind that keeps a contract: the named one, or the only one with its suffix.

        Raises:
            InvalidInputError: no kind fits, or several do.
        """
        suffixes = _SUFFIXES[contract]
        found = [
            kind
            for kind in self.kinds
            if (kind.kind == name if name else kind.kind.endswith(suffixes))
        ]
        if len(found) == 1:
            return found[0]
        known = ", ".join(sorted(kind.kind for kind in found or self.kinds)) or "none"
        wanted = name or f"...{suffixes[0]}"
        raise InvalidInputError(
            f"{len(found)} kinds have the name {wanted}.",
            reason=f"Kinds in the manifests: {known}.",
            hint="Name the one to check with --kind.",
        )


@dataclass(frozen=True, slots=True)
class Subject:
    """The kind that is checked, among the manifests of its provider."""

    contract: Contract
    manifests: ProviderManifests
    kind: CustomKind
    template: CustomKind | None = None
    """The kind `...Template` of it."""

    @classmethod
    def of(
        cls, manifests: ProviderManifests, contract: Contract, kind: str | None = None
    ) -> "Subject":
        """The subject of a contract, by the name of the kind or by its suffix.

        Raises:
            InvalidInputError: no kind fits, or several do.
        """
        found = manifests.kind_of(contract, kind)
        return cls(contract, manifests, found, manifests.find_kind(f"{found.kind}Template"))

    @property
    def both(self) -> list[CustomKind]:
        """The kind, and its template if it has one."""
        return [self.kind] if self.template is None else [self.kind, self.template]


def load_manifests(path: Path) -> ProviderManifests:
    """The manifests in a file, or in the YAML files of a folder.

    `metadata.yaml` is in the same folder. Cluster templates and ClusterClasses do not count.

    Raises:
        InvalidInputError: there are none, or a file is not YAML.
    """
    folder = path if path.is_dir() else path.parent
    files = (
        [file for file in sorted(path.iterdir()) if file.suffix in {".yaml", ".yml"}]
        if path.is_dir()
        else [path]
    )
    chosen = [f for f in files if f.name != _METADATA and not _TEMPLATES.fullmatch(f.name)]
    texts = {file.name: _read(file) for file in chosen}
    components = [obj for name, text in texts.items() for obj in _objects(folder / name, text)]
    if not components:
        raise InvalidInputError(
            f"There are no manifests in {path}.",
            reason="No YAML file there has an object with apiVersion and kind.",
            hint="Name the file with the provider's components, or its folder.",
        )
    metadata = folder / _METADATA
    content = next(iter(_documents(metadata, _read(metadata))), None) if metadata.exists() else None
    return ProviderManifests(
        components, cast("Unstructured", content) if isinstance(content, dict) else None, texts
    )


def manifests_of(provider: Provider) -> ProviderManifests:
    """The manifests of a provider that an installed Python package brings."""
    components = [*provider.components(), *provider.objects]
    return ProviderManifests(components, is_installed_package=True)


def load_samples(path: Path) -> list[Unstructured]:
    """The objects in a YAML file, as samples of the provider's kinds.

    Raises:
        InvalidInputError: the file is not YAML.
    """
    return list(_objects(path, _read(path)))


def _objects(file: Path, text: str) -> Iterator[Unstructured]:
    for document in _documents(file, text):
        yield from _flattened(document)


def _flattened(document: object) -> Iterator[Unstructured]:
    if not isinstance(document, dict):
        return
    obj = cast("Unstructured", document)
    if str(obj.get("kind", "")).endswith("List") and isinstance(obj.get("items"), list):
        for item in cast("list[object]", obj["items"]):
            yield from _flattened(item)
    elif obj.get("kind") and isinstance(obj.get("metadata"), dict):
        yield obj


def _documents(file: Path, text: str) -> Iterable[object]:
    try:
        return list(read_all_yaml(text))
    except yaml.YAMLError as error:
        raise InvalidInputError(
            f"{file} is not YAML.", reason=f"{error}.", hint="Correct the file."
        ) from None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            f"{file} cannot be read.", reason=f"{error}.", hint="Name another file."
        ) from None
