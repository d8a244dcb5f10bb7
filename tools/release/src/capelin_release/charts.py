"""Helm charts of providers, made from what their packages declare."""

import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

import yaml
from capelin.api import Model, Unstructured
from capelin.contract import PROVIDER_LABEL
from capelin.controller import diagnostics_rules, lease_rules
from capelin.provider import Provider, is_validation, needs_webhook

from capelin_release.alerts import EXTENSION_ALERTS, MANAGER_ALERTS, Alert
from capelin_release.files import BUILDER, File, write_tar
from capelin_release.values import KindsValues, values_file, values_schema, values_table

LIBRARY: Final = "capelin-common"
KUBERNETES: Final = ">=1.33.0-0"
_NOTES: Final = (
    "Show the deployments: kubectl get deployments --namespace {{ .Release.Namespace }}\n"
    "Kinds and their objects stay when this release is uninstalled.\n"
)
_PART_OF: Final = "app.kubernetes.io/part-of"
_LABELS_HERE: Final = "capelin.labels"
_KEEP_HERE: Final = "capelin.keep"
_NAMESPACE_HERE: Final = "capelin-namespace-of-the-release"
_INJECT_HERE: Final = "cert-manager.io/inject-ca-from"
_SERVICE_HERE: Final = "capelin-name-of-the-release"
_EXTENSION_CONFIG_HERE: Final = '{{ include "capelin.extensionConfigName" . }}'
_GUARDS: Final = {
    "topology-owned": "topologyOwned",
    "references": "references",
    "quota-labels": "quotaLabels",
}
"""Values that admission policies depend on, by the last part of the policies' names."""


OptionalResources = frozenset[tuple[str, str]]
"""API groups and resources."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart in memory."""

    name: str
    files: Mapping[str, str]
    """By their paths in the chart's folder, without those of dependencies."""
    dependencies: Sequence["Chart"] = field(default=())

    def all_files(self) -> dict[str, str]:
        """Its files, and under `charts/` those of its dependencies."""
        nested = {
            f"charts/{chart.name}/{path}": text
            for chart in self.dependencies
            for path, text in chart.all_files().items()
        }
        return {**self.files, **nested}

    def write(self, folder: Path) -> Path:
        """Write all of it as `FOLDER/NAME`. Returns that folder."""
        for path, text in self.all_files().items():
            file = folder / self.name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return folder / self.name

    def archive(self, modified: int = 0) -> bytes:
        """The archive of `helm package`, but with the same bytes every time.

        Args:
            modified: The time of all files, in seconds since 1970.
        """
        entries = (
            (f"{self.name}/{path}", File(BUILDER, 0o644, content=text.encode()))
            for path, text in sorted(self.all_files().items())
        )
        buffer = io.BytesIO()
        write_tar(entries, modified, buffer)
        return gzip.compress(buffer.getvalue(), mtime=0)


def library_folder() -> Traversable:
    """The library chart's folder."""
    return files("capelin_release") / "library"


def library_chart() -> Chart:
    """The templates that all charts of providers share."""
    return Chart(LIBRARY, _read(library_folder()))


def provider_chart(
    provider: Provider,
    values: Model,
    *,
    name: str,
    version: str,
    description: str,
    with_kinds: bool,
    optional: Mapping[str, OptionalResources] | None = None,
    part_of: str = "",
    more_alerts: Sequence[Alert] = (),
) -> Chart:
    """The chart of a provider's pods and permissions.

    Args:
        provider: The declarations of its package.
        values: The defaults of the chart's values.
        name: The chart's name.
        version: Such as `0.1.0`.
        description: A sentence.
        with_kinds: Whether its kinds come with it, instead of in a chart of their own.
        optional: Resources that it may use only if a value `permissions.NAME` allows it, by name.
        part_of: The project of several charts that it belongs to, for the label of its objects.
        more_alerts: Alerts about metrics of its own.
    """
    needed, separate = separate_rules(provider.rules, optional or {})
    if provider.type == "RuntimeExtensionProvider":
        template, alerts = "extension", EXTENSION_ALERTS
    else:
        template, alerts = "manager", MANAGER_ALERTS
    made = {
        **_about(
            name,
            version,
            description,
            values,
            dependencies=[_library()],
            namespace=f"{part_of}-system" if part_of else provider.namespace,
            annotations={PROVIDER_LABEL: provider.label, _PART_OF: part_of},
        ),
        "templates/provider.yaml": f'{{{{- include "capelin.{template}" . -}}}}\n',
        "files/rules.yaml": _rules([_of_release(rule) for rule in needed]),
        **{f"files/{role}-rules.yaml": _rules(rules) for role, rules in separate.items()},
        "files/lease-rules.yaml": _rules(lease_rules(provider.manager) if provider.manager else ()),
        "files/metrics-rules.yaml": _rules(diagnostics_rules()),
        "files/alerts.yaml": dump_yaml([alert.rule for alert in (*alerts, *more_alerts)]),
    }
    if inside := [_template(obj, {}, keep=False) for obj in _inside(provider)]:
        made["templates/objects.yaml"] = "---\n".join(inside)
    if with_kinds:
        made |= _kinds(provider, labelled=False)
    return Chart(name, made, [library_chart()])


def kinds_chart(
    providers: Sequence[Provider], *, name: str, version: str, description: str, part_of: str
) -> Chart:
    """The chart of the kinds of providers, and of what belongs to them once in a cluster."""
    made = _about(
        name,
        version,
        description,
        KindsValues(),
        dependencies=[_library()],
        namespace=f"{part_of}-system",
        annotations={_PART_OF: part_of},
    )
    for provider in providers:
        made |= _kinds(provider, labelled=True)
    return Chart(name, made, [library_chart()])


def umbrella_chart(
    charts: Mapping[str, Chart], values: Model, *, name: str, version: str, description: str
) -> Chart:
    """A chart that installs others, each as long as its value `components.KEY` is true."""
    dependencies = [
        {"name": chart.name, "version": version, "condition": f"components.{key}"}
        for key, chart in charts.items()
    ]
    about = _about(
        name, version, description, values, dependencies=dependencies, namespace=f"{name}-system"
    )
    about["templates/NOTES.txt"] = _NOTES
    return Chart(name, about, list(charts.values()))


def separate_rules(
    rules: Sequence[Unstructured], optional: Mapping[str, OptionalResources]
) -> tuple[list[Unstructured], dict[str, list[Unstructured]]]:
    """The rules that are always needed, and those of each optional role."""
    needed: list[Unstructured] = []
    separate: dict[str, list[Unstructured]] = {name: [] for name in optional}
    for rule in rules:
        remaining: list[str] = rule["resources"]
        for name, resources in optional.items():
            # A rule for named objects stays: it is narrow.
            moved = [
                resource
                for resource in remaining
                if "resourceNames" not in rule
                and any((group, resource) in resources for group in rule["apiGroups"])
            ]
            if moved:
                separate[name].append({**rule, "resources": moved})
            remaining = [resource for resource in remaining if resource not in moved]
        if remaining:
            needed.append({**rule, "resources": remaining})
    return needed, separate


def _of_release(rule: Unstructured) -> Unstructured:
    """The rule, with the name that a release gives the ExtensionConfig."""
    if "extensionconfigs" in rule["resources"] and "resourceNames" in rule:
        return {**rule, "resourceNames": [_EXTENSION_CONFIG_HERE]}
    return rule


def _kinds(provider: Provider, *, labelled: bool) -> dict[str, str]:
    """The templates of a provider's kinds, their roles and its policies."""
    label = {PROVIDER_LABEL: provider.label} if labelled else {}
    outside = [
        obj
        for obj in provider.objects
        if "namespace" not in obj["metadata"] and obj["kind"] != "ExtensionConfig"
    ]
    others = [*provider.aggregated_roles, *map(_calling_pods, outside)]
    if labelled and provider.serves_webhooks:
        msg = f"the kinds of {provider.label} have webhooks: keep them in the chart of its pods"
        raise ValueError(msg)
    crds = provider.crds if labelled else map(_of_pods, provider.crds)
    kinds = [_template(crd, label, keep=labelled) for crd in crds]
    rest = [_guarded(obj, _template(obj, label, keep=False)) for obj in others]
    made = {
        f"templates/{provider.label}-kinds.yaml": "---\n".join(kinds),
        f"templates/{provider.label}.yaml": "---\n".join(rest),
    }
    return {path: text for path, text in made.items() if text}


def _of_pods(definition: Unstructured) -> Unstructured:
    """The CRD in the chart of its manager's pods. It survives `helm uninstall`.

    The API server calls its webhook at the Service of the release, with the CA of its certificate.
    """
    metadata, spec = definition["metadata"], definition["spec"]
    annotations = {**metadata.get("annotations", {}), "helm.sh/resource-policy": "keep"}
    if needs_webhook(definition):
        annotations = {_INJECT_HERE: None, **annotations}
        webhook = _at_release(spec["conversion"]["webhook"])
        spec = {**spec, "conversion": {**spec["conversion"], "webhook": webhook}}
    return {**definition, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


def _calling_pods(obj: Unstructured) -> Unstructured:
    """The object. If it configures webhooks, the API server calls those of the release."""
    if not is_validation(obj):
        return obj
    metadata = {**obj["metadata"], "annotations": {_INJECT_HERE: None}}
    return {**obj, "metadata": metadata, "webhooks": [*map(_at_release, obj["webhooks"])]}


def _at_release(webhook: Unstructured) -> Unstructured:
    """A webhook at the Service of the release."""
    service = webhook["clientConfig"]["service"]
    here = {"service": {**service, "name": _SERVICE_HERE, "namespace": _NAMESPACE_HERE}}
    return {**webhook, "clientConfig": here}


def _guarded(obj: Unstructured, text: str) -> str:
    """The template of an object, which a value of the chart may leave out."""
    for suffix, value in _GUARDS.items():
        if obj["kind"].startswith("ValidatingAdmissionPolicy") and obj["metadata"]["name"].endswith(
            f"-{suffix}"
        ):
            chosen = f'dig "{value}" true (.Values.admissionPolicies | default dict)'
            return f"{{{{- if {chosen} }}}}\n{text}{{{{- end }}}}\n"
    return text


def _inside(provider: Provider) -> list[Unstructured]:
    """The objects of a provider's namespace that the chart does not make itself."""
    made = {"ExtensionConfig", "Role", "RoleBinding"}
    return [
        {**obj, "metadata": {**obj["metadata"], "namespace": _NAMESPACE_HERE}}
        for obj in provider.objects
        if "namespace" in obj["metadata"] and obj["kind"] not in made
    ]


def _template(obj: Unstructured, labels: Mapping[str, str], *, keep: bool) -> str:
    """An object as a template, with the chart's labels, and kept on uninstall if asked to."""
    metadata = dict(obj["metadata"])
    own = {k: v for k, v in metadata.get("labels", {}).items() if k != PROVIDER_LABEL}
    metadata["labels"] = {_LABELS_HERE: None, **labels, **own}
    if keep:
        metadata["annotations"] = {_KEEP_HERE: None, **metadata.get("annotations", {})}
    text = dump_yaml({**obj, "metadata": metadata}).replace("{{", '{{ "{{" }}')
    include = '    {{- include "capelin.labels" . | nindent 4 }}\n'
    kept = "    {{- if .Values.keep }}\n    helm.sh/resource-policy: keep\n    {{- end }}\n"
    text = text.replace(f"    {_LABELS_HERE}: null\n", include)
    inject = (
        "    {{- if .Values.certManager.enabled }}\n"
        f'    {_INJECT_HERE}: {{{{ .Release.Namespace }}}}/{{{{ include "capelin.name" . }}}}\n'
        "    {{- end }}\n"
    )
    text = text.replace(f"    {_INJECT_HERE}: null\n", inject)
    text = text.replace(_NAMESPACE_HERE, "{{ .Release.Namespace }}")
    text = text.replace(_SERVICE_HERE, '{{ include "capelin.name" . }}')
    return text.replace(f"    {_KEEP_HERE}: null\n", kept)


def _about(
    name: str,
    version: str,
    description: str,
    values: Model,
    *,
    dependencies: Sequence[Mapping[str, str]],
    namespace: str,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The files that every chart has."""
    chart: dict[str, Any] = {
        "apiVersion": "v2",
        "name": name,
        "description": description,
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": KUBERNETES,
        "dependencies": [
            {**dependency, "repository": f"file://../{dependency['name']}"}
            for dependency in dependencies
        ],
    }
    if given := {key: value for key, value in (annotations or {}).items() if value}:
        chart["annotations"] = given
    return {
        "Chart.yaml": dump_yaml(chart),
        "values.yaml": values_file(values),
        "values.schema.json": values_schema(type(values)),
        "README.md": (
            f"# {name}\n\n{description}\n\n```console\n"
            f"helm install {name} charts/{name} --namespace {namespace} --create-namespace\n"
            f"```\n\n## Values\n\n{values_table(values)}"
        ),
    }


def dump_yaml(obj: Any) -> str:
    """One YAML document, with the fields in their order."""
    return yaml.dump(obj, Dumper=_Dumper, sort_keys=False, width=1_000_000)


class _Dumper(yaml.SafeDumper):
    """Without anchors, and with the items of a list indented."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        super().increase_indent(flow, indentless=False)


def _rules(rules: Sequence[Unstructured]) -> str:
    return dump_yaml(list(rules)) if rules else ""


def _library() -> dict[str, str]:
    """The library chart as a dependency."""
    chart = yaml.safe_load((library_folder() / "Chart.yaml").read_text(encoding="utf-8"))
    return {"name": LIBRARY, "version": str(chart["version"])}


def _read(folder: Traversable, prefix: str = "") -> dict[str, str]:
    read: dict[str, str] = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        path = f"{prefix}{entry.name}"
        read |= _read(entry, f"{path}/") if entry.is_dir() else {path: entry.read_text("utf-8")}
    return read
