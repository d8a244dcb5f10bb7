"""The values that the charts take, and their defaults: one source for schema, file and README."""

import json
import textwrap
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Ge, Le, Len
from capelin.api import DescribedModel, Model, described_fields
from pydantic import Field

AnyObject = dict[str, Any]
Objects = list[dict[str, Any]]
Labels = dict[str, str]

_WIDTH = 96


class Image(DescribedModel):
    """Container image."""

    repository: str
    """Registry and name."""
    tag: str = ""
    """Tag. If empty, the version of the chart."""
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    """Digest such as `sha256:...`. It takes the place of the tag."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When a node pulls the image."""


class ServiceMonitor(DescribedModel):
    """ServiceMonitor of the Prometheus operator."""

    enabled: bool = False
    """Whether to create it. Its kind has to be installed."""
    interval: str = "30s"
    """How often to scrape."""
    labels: Labels = {}
    """Labels that your Prometheus selects by."""


class PrometheusRule(DescribedModel):
    """PrometheusRule of the Prometheus operator, with alerts."""

    enabled: bool = False
    """Whether to create it. Its kind has to be installed."""
    labels: Labels = {}
    """Labels that your Prometheus selects by."""


class Dashboard(DescribedModel):
    """Grafana dashboard in a ConfigMap that Grafana's sidecar finds by its labels."""

    enabled: bool = False
    """Whether to create it."""
    labels: Labels = {"grafana_dashboard": "1"}
    """Labels that your sidecar selects by."""


class Metrics(DescribedModel):
    """Metrics."""

    enabled: bool = True
    """Whether to serve them. A scraper needs a token of a user who may get /metrics."""
    service_monitor: ServiceMonitor = ServiceMonitor()
    prometheus_rule: PrometheusRule = PrometheusRule()
    dashboard: Dashboard = Dashboard()


class ExtensionMetrics(Metrics):
    """Metrics."""

    token_secret: str = ""
    """Secret with the `token` of scrapers. If empty, no other pod can scrape."""


class PodDisruptionBudget(DescribedModel):
    """PodDisruptionBudget."""

    enabled: bool = True
    """Whether to create it. It never blocks the eviction of a single replica."""
    max_unavailable: Annotated[int, Ge(0)] = 1
    """How many pods may be away at a time."""


class NetworkPolicy(DescribedModel):
    """NetworkPolicy. It lets calls in to the ports that are served, and to no others."""

    enabled: bool = False
    """Whether to create it."""
    from_: Annotated[Objects, Field(alias="from")] = []
    """Callers, as peers of a NetworkPolicy. If empty, everybody."""
    egress: Objects = []
    """Destinations of the pods' calls, as egress rules. If empty, everything. Pods need the API
    servers of the management cluster and of workload clusters."""


class HooksNetworkPolicy(NetworkPolicy):
    """NetworkPolicy. It lets calls in to the ports that are served, and to no others."""

    enabled: bool = True
    """Whether to create it."""
    from_: Annotated[Objects, Field(alias="from")] = [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "capi-system"}}}
    ]
    """Peers that may call hooks: the namespace of Cluster API's core. If empty, everybody."""
    metrics_from: Objects = []
    """Peers that may scrape metrics. If empty, none."""


class PodValues(DescribedModel):
    """Values of every chart with pods."""

    fullname_override: Annotated[str, Len(0, 53)] = ""
    """Name of the objects. The default follows from the release."""
    image: Image
    image_pull_secrets: Objects = []
    """Secrets of private registries, such as `[{name: my-registry}]`."""
    replicas: Annotated[int, Ge(0), Le(1_000_000)] = 1
    """Number of pods."""
    resources: AnyObject = {
        "requests": {"cpu": "50m", "memory": "128Mi"},
        "limits": {"memory": "512Mi"},
    }
    """Resources of a pod's container."""
    priority_class_name: str = ""
    """Priority class of the pods."""
    node_selector: Labels = {}
    """Labels of nodes that pods may run on."""
    affinity: AnyObject = {}
    """Affinity of the pods."""
    tolerations: Objects = []
    """Taints that pods tolerate."""
    pod_annotations: Labels = {}
    """More annotations of the pods."""
    pod_labels: Labels = {}
    """More labels of the pods."""
    args: list[str] = []
    """Flags that this chart sets beyond the usual ones."""
    extra_args: list[str] = []
    """More flags. The last one of a name wins."""
    extra_env: Objects = []
    """More environment variables, in the format of a container."""
    extra_volumes: Objects = []
    """More volumes, in the format of a pod."""
    extra_volume_mounts: Objects = []
    """Their mounts, in the format of a container."""
    pod_disruption_budget: PodDisruptionBudget = PodDisruptionBudget()


class Watch(DescribedModel):
    """The objects that the controllers watch."""

    namespace: str = ""
    """The only namespace to watch. If empty, all. The permissions become those of a Role in this
    namespace."""
    filter: str = ""
    """Only objects that have this value in their label `cluster.x-k8s.io/watch-filter`."""


class ManagerLog(DescribedModel):
    """Log."""

    format: Literal["text", "json"] = "text"
    """Format of the lines."""
    verbosity: Annotated[int, Ge(0), Le(1_000_000)] = 0
    """From 1, more detail. From 2, also the libraries' own lines."""


class ManagerValues(PodValues):
    """The values of a chart whose pods run controllers. One of them works at a time."""

    metrics: Metrics = Metrics()
    network_policy: NetworkPolicy = NetworkPolicy()
    watch: Watch = Watch()
    concurrency: Annotated[int, Ge(1), Le(1_000_000)] = 10
    """How many objects of a kind are reconciled at the same time."""
    sync_period: Annotated[str, Field(pattern=r"^(\d+(\.\d+)?(ms|s|m|h))+$")] = "10h"
    """How often to look at an object that did not change."""
    log: ManagerLog = ManagerLog()


class CertManager(DescribedModel):
    """cert-manager."""

    enabled: bool = True
    """Whether it creates the serving certificate. Otherwise, create `certificateSecret`."""


class WebhookManagerValues(ManagerValues):
    """The values of a chart whose pods run controllers and serve webhooks."""

    cert_manager: CertManager = CertManager()
    certificate_secret: str = ""
    """Secret with `tls.crt`, `tls.key` and `ca.crt`. If empty, one named after the release. Its
    certificate is for `<name>.<namespace>.svc`. If cert-manager does not create it, write its CA
    into the CRDs."""


class ExtensionLog(DescribedModel):
    """Log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level to log."""


class ExtensionConfigValues(DescribedModel):
    """ExtensionConfig, by which Cluster API finds the extension."""

    enabled: bool = True
    """Whether to create it."""
    name: str = ""
    """Its name, by which ClusterClasses refer to handlers. If empty, that of the other objects."""
    namespace_selector: AnyObject = {}
    """Namespaces for whose objects Cluster API calls the extension. If empty, all."""
    settings: Labels = {}
    """Settings that Cluster API passes to every call."""


class ClientCA(DescribedModel):
    """Certificate authority of the client certificate that Cluster API's core presents."""

    config_map: Annotated[str, Len(1, 253)] = "runtime-extension-client-ca"
    """ConfigMap with `ca.crt` in the namespace of the release. Pods start as soon as it exists."""


class Permissions(DescribedModel):
    """Optional permissions of the extension, as ClusterRoles that always exist.

    Instead of binding one in the whole cluster, you can bind it in a namespace with a RoleBinding.
    """

    jobs: bool = False
    """Whether it may run Jobs in all namespaces of the management cluster, for the action `job`."""
    secrets: bool = False
    """Whether it may read Secrets of all namespaces: kubeconfigs of workload clusters, for the
    actions `apply` and `job`."""
    machines: bool = False
    """Whether it may read Machines and CapelinMachines, for the flag `--in-place-updates`."""


class ExtensionValues(PodValues):
    """The values of a chart whose pods serve a Runtime Extension."""

    metrics: ExtensionMetrics = ExtensionMetrics()
    network_policy: HooksNetworkPolicy = HooksNetworkPolicy()
    client_ca: Annotated[ClientCA, Field(alias="clientCA")] = ClientCA()
    permissions: Permissions = Permissions()
    cert_manager: CertManager = CertManager()
    certificate_secret: str = ""
    """Secret with `tls.crt`, `tls.key` and `ca.crt`. If empty, one named after the release. Its
    certificate is for `<name>.<namespace>.svc`."""
    extension_config: ExtensionConfigValues = ExtensionConfigValues()
    log: ExtensionLog = ExtensionLog()


class AdmissionPolicies(DescribedModel):
    """ValidatingAdmissionPolicies that keep users from going around the lifecycle hooks."""

    topology_owned: bool = True
    """Whether only controllers may change and delete objects of a Cluster's topology."""
    references: bool = True
    """Whether only controllers and administrators may set `infrastructureRef` and
    `controlPlaneRef` of a Cluster with a topology, and the annotations and the finalizer by which
    Cluster API decides whether it calls hooks. `clusterctl move` needs an administrator."""
    quota_labels: bool = True
    """Whether only administrators may set the label that a ClusterLifecyclePolicy groups a quota
    by, unless the namespace has the same label."""


class KindsValues(DescribedModel):
    """The values of a chart of kinds."""

    keep: bool = True
    """Whether kinds, and with them all their objects, survive `helm uninstall`."""
    admission_policies: AdmissionPolicies = AdmissionPolicies()


def values_schema(values: type[Model]) -> str:
    """The `values.schema.json` of a chart."""
    schema = values.model_json_schema(by_alias=True)
    # Helm adds values of its own to those of a chart.
    for name in ("global", "capelin-common"):
        schema["properties"][name] = {"type": "object"}
    # Every version of Helm supports draft 7.
    schema["definitions"] = schema.pop("$defs", {})
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    return json.dumps(schema, indent=2).replace('"#/$defs/', '"#/definitions/') + "\n"


def values_file(values: Model) -> str:
    """The `values.yaml` of a chart, with the purpose of each value."""
    return "\n".join(_lines(values, 0)).lstrip("\n") + "\n"


def _lines(values: Model, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, info in described_fields(type(values)).items():
        value = getattr(values, name)
        text = info.description or (type(value).__doc__ if isinstance(value, Model) else "") or ""
        if not depth:
            yield ""
        for line in textwrap.wrap(" ".join(text.split()), _WIDTH - len(indent)):
            yield f"{indent}# {line}"
        if isinstance(value, Model):
            yield f"{indent}{info.alias}:"
            yield from _lines(value, depth + 1)
        else:
            dumped = yaml.safe_dump({info.alias: value}, sort_keys=False, width=1000)
            yield textwrap.indent(dumped.rstrip("\n"), indent)


def values_table(values: Model) -> str:
    """The values as a table of a README."""
    rows = ["| value | default | |", "|---|---|---|"]
    for path, value, text in _rows(values, ""):
        default = json.dumps(value)
        rows.append(f"| `{path}` | `{default}` | {text} |")
    return "\n".join(rows) + "\n"


def _rows(values: Model, prefix: str) -> Iterator[tuple[str, Any, str]]:
    for name, info in described_fields(type(values)).items():
        value = getattr(values, name)
        if isinstance(value, Model):
            yield from _rows(value, f"{prefix}{info.alias}.")
        else:
            yield f"{prefix}{info.alias}", value, " ".join((info.description or "").split())
