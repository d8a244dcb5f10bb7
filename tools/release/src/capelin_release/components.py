"""Component files for clusterctl, rendered from charts."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from capelin.api import Unstructured
from capelin.contract import PROVIDER_LABEL, ProviderType
from capelin.errors import UserError
from capelin.programs import run_program
from capelin.provider import Provider
from capelin.yaml import read_all_yaml, read_yaml
from capelin_embedded.binaries import Binaries, Component

from capelin_release.charts import Chart, dump_yaml
from capelin_release.tools import HELM

FILES: Final[dict[ProviderType, str]] = {
    "CoreProvider": "core-components.yaml",
    "BootstrapProvider": "bootstrap-components.yaml",
    "ControlPlaneProvider": "control-plane-components.yaml",
    "InfrastructureProvider": "infrastructure-components.yaml",
    "IPAMProvider": "ipam-components.yaml",
    "RuntimeExtensionProvider": "runtime-extension-components.yaml",
    "AddonProvider": "addon-components.yaml",
}
"""clusterctl's name of a provider's component file."""

KUBERNETES: Final = "v1.34.0"
"""The version that charts are rendered for. They do not depend on it."""

_OF_HELM: Final = ("app.kubernetes.io/managed-by", "helm.sh/")


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of clusterctl that stands for a value of the chart."""

    name: str
    """Without the provider's prefix."""
    value: str
    """The path of the value."""
    stand_in: str | int
    """The value for rendering the chart. It is valid there, and appears nowhere else."""


# All have defaults: to clusterctl, a variable whose default is empty has none.
# `clusterctl generate provider --describe` reads the Deployment before it substitutes variables,
# so a variable can stand only where the Deployment has text: in an argument, not in `replicas`.
_MANAGER: Final = (
    Variable("CONCURRENCY", "concurrency", 987657),
    Variable("SYNC_PERIOD", "syncPeriod", "987658s"),
    Variable("VERBOSITY", "log.verbosity", 987659),
)


def variables_of(provider: Provider) -> tuple[Variable, ...]:
    """The variables of a provider for users of clusterctl."""
    return () if provider.type == "RuntimeExtensionProvider" else _MANAGER


def variable_name(provider: Provider, variable: Variable) -> str:
    """Such as `CAPELIN_CONTROL_PLANE_CONCURRENCY`."""
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", provider.type.removesuffix("Provider"))
    return f"{provider.name}_{kind}_{variable.name}".upper().replace("-", "_")


async def render_components(provider: Provider, charts: Sequence[Chart], binaries: Binaries) -> str:
    """The component file of a provider.

    Args:
        provider: The declarations of its package.
        charts: The chart of its pods, and that of its kinds if there is one.
        binaries: Where Helm comes from.

    Raises:
        UserError: Helm refuses a chart.
    """
    own = charts[0]
    variables = variables_of(provider)
    defaults = read_yaml(own.files["values.yaml"])
    values: dict[str, Any] = {"fullnameOverride": provider.label}
    for variable in variables:
        _put(values, variable.value, variable.stand_in)
    rendered = await render_chart(own, provider.label, provider.namespace, binaries, values)
    for chart in charts[1:]:
        rendered += await render_chart(chart, provider.label, provider.namespace, binaries)
    components = [_namespace(provider), *component_objects(provider, rendered)]
    text = escape("---\n".join(dump_yaml(component) for component in components))
    for variable in variables:
        default = _get(defaults, variable.value)
        expression = f"${{{variable_name(provider, variable)}:={default}}}"
        text = text.replace(str(variable.stand_in), expression)
    return text


def component_objects(provider: Provider, rendered: Sequence[Unstructured]) -> list[Unstructured]:
    """The provider's own rendered objects, in the form for clusterctl."""
    return [
        _without_helm(obj, provider)
        for obj in rendered
        if obj["metadata"].get("labels", {}).get(PROVIDER_LABEL) == provider.label
    ]


async def render_chart(
    chart: Chart,
    release: str,
    namespace: str,
    binaries: Binaries,
    values: Mapping[str, Any] | None = None,
) -> list[Unstructured]:
    """The objects that `helm install` would create, without hooks.

    Raises:
        UserError: Helm refuses the chart or the values. The reason contains its message.
    """
    with TemporaryDirectory(prefix="capelin-") as temporary:
        folder = chart.write(Path(temporary))
        given = folder / "given.json"
        await asyncio.to_thread(given.write_text, json.dumps(values or {}))
        text = await helm(
            binaries,
            *("template", release, str(folder), f"--namespace={namespace}"),
            *(f"--values={given}", "--no-hooks", f"--kube-version={KUBERNETES}"),
        )
    return [obj for obj in read_all_yaml(text) if obj]


async def helm(binaries: Binaries, *arguments: str, program: Component = HELM) -> str:
    """Run Helm. Returns its output.

    Raises:
        UserError: It fails.
    """
    ended = await run_program(await binaries.path(program), *arguments)
    if ended.code:
        raise UserError(
            f"helm {arguments[0]} failed.",
            reason=ended.errors,
            hint="Correct the chart or its values.",
        )
    return ended.output.decode()


def escape(text: str) -> str:
    """The text in a form that the substitution of variables does not change."""
    return re.sub(r"\$+(?=\{)|\${2,}", lambda dollars: dollars[0] * 2, text)


def metadata_file(series: Mapping[tuple[int, int], str]) -> str:
    """The `metadata.yaml` of a provider: the contract of each release series."""
    return dump_yaml(
        {
            "apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3",
            "kind": "Metadata",
            "releaseSeries": [
                {"major": major, "minor": minor, "contract": contract}
                for (major, minor), contract in sorted(series.items(), reverse=True)
            ],
        }
    )


def _namespace(provider: Provider) -> Unstructured:
    labels = {
        PROVIDER_LABEL: provider.label,
        "pod-security.kubernetes.io/enforce": "restricted",
    }
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": provider.namespace, "labels": labels},
    }


def _without_helm(obj: Unstructured, provider: Provider) -> Unstructured:
    """The object without labels and annotations that have a meaning only for Helm."""
    metadata = {
        key: value for key, value in obj["metadata"].items() if key not in {"labels", "annotations"}
    }
    for field in ("labels", "annotations"):
        own: dict[str, str] = obj["metadata"].get(field) or {}
        kept = {key: value for key, value in own.items() if not key.startswith(_OF_HELM)}
        if kept:
            metadata[field] = kept
    metadata["labels"] = {**metadata.get("labels", {}), PROVIDER_LABEL: provider.label}
    made = {**obj, "metadata": metadata}
    if obj.get("kind") == "Deployment":
        template = obj["spec"]["template"]
        made["spec"] = {**obj["spec"], "template": _without_helm(template, provider)}
    return made


def _put(values: dict[str, Any], path: str, value: str | int) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
    values[last] = value


def _get(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = values[name]
    return values
