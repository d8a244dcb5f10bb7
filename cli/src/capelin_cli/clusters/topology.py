"""The topology of a Cluster: what to create, what to patch, and why it is rejected. Pure."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

import yaml
from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass, WorkersTopology
from capelin.client import ApiError, Invalid
from capelin.contract import find_condition
from capelin.errors import InvalidInputError
from capelin_embedded.binaries import KNOWN_KUBERNETES

from capelin_cli.environments.kubernetes_versions import (
    check_upgrade,
    next_version,
    parse_version,
)
from capelin_cli.status.cluster_tree import ClusterGraph
from capelin_cli.status.condition_messages import is_upgrading
from capelin_cli.status.readiness import not_ready_reason

DEMO_CLASS: Final = "capelin"
"""The ClusterClass of our own providers."""

MACHINES_LABEL: Final = "capelin.cluster.x-k8s.io/machines"
"""Label of a Cluster whose machines are not simulated, with their kind."""
POD_NETWORK: Final = "10.244.0.0/16"

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

Operation = dict[str, Any]
_WEBHOOK: Final = re.compile(r'^admission webhook "[^"]+" denied the request: ')
_VARIABLE: Final = re.compile(
    r"^spec\.topology\.variables\[(?P<name>[^\]]+)\](?:\.value)?(?P<path>(?:\.\w+)*)"
)
# The value is the whole variable, which users have just typed.
_VALUE: Final = re.compile(r'^(?:Invalid|Unsupported) value: (?:"(?:[^"\\]|\\.)*"|[^:]*): ')


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """The version to upgrade to, and the next action."""

    version: str
    action: Literal["Send", "Wait", "Nothing"]
    """`Wait` if Cluster API already works on it, `Nothing` if the cluster runs the version."""


def plan_upgrade(
    requested: str | None, desired: str, observed: ClusterGraph, known: Sequence[str]
) -> UpgradePlan:
    """The upgrade of a Cluster to a requested version, or to the next one."""
    in_progress = upgrade_in_progress(desired, observed)
    if requested is not None:
        version = parse_version(requested, known)
    else:
        version = desired if in_progress else next_version(desired, known)
    if version == desired:
        return UpgradePlan(version, "Wait" if in_progress else "Nothing")
    if observed.versions - {desired}:
        raise InvalidInputError(
            f"The cluster is being upgraded to {desired}, and {version} cannot take its place.",
            reason="Cluster API accepts another version when the whole cluster runs this one.",
            hint="Wait for this upgrade with capelin wait, then try again.",
        )
    check_upgrade(desired, version, known)
    return UpgradePlan(version, "Send")


def upgrade_in_progress(desired: str, observed: ClusterGraph) -> bool:
    """Whether a Cluster does not run the desired version everywhere, or its hooks still block."""
    if not observed.versions:
        return not_ready_reason(observed) is not None
    topology = find_condition(observed.cluster.status.conditions, "TopologyReconciled")
    is_unfinished = topology is not None and is_upgrading(topology.message)
    return is_unfinished or observed.versions != {desired}


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The spec that a user asks for. None is the default of a new cluster."""

    cluster_class: str = DEMO_CLASS
    version: str | None = None
    control_plane_replicas: int | None = None
    workers: int | None = None
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values of the class's variables."""
    endpoint: tuple[str, int] | None = None
    """Address and port of the control plane. None leaves them to its provider."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """The numbers that a user asks a cluster to have. None leaves a number as it is."""

    workers: int | None = None
    pool: str | None = None
    control_plane_replicas: int | None = None


def check_cluster_name(name: str) -> None:
    """Reject a name that a cluster cannot have."""
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"{name!r} cannot be the name of a cluster.",
            reason="A name has 1 to 63 lower-case letters, digits and hyphens.",
            hint="Choose another name.",
        )


def new_cluster(
    name: str, namespace: str, version: str, options: ClusterOptions, cluster_class: ClusterClass
) -> Unstructured:
    """A Cluster of a class, with one group of workers."""
    check_cluster_name(name)
    replicas, workers = options.control_plane_replicas, options.workers
    topology: Unstructured = {
        "classRef": {"name": options.cluster_class},
        "version": version,
        "controlPlane": {"replicas": 1 if replicas is None else replicas},
    }
    if workers != 0:
        kind, worker_class = _worker_class(cluster_class)
        count = 3 if workers is None else workers
        group = {"class": worker_class, "name": "workers", "replicas": count}
        topology["workers"] = {kind: [group]}
    if options.variables:
        _check_variables(options.variables, cluster_class)
        topology["variables"] = [
            {"name": variable, "value": value} for variable, value in options.variables.items()
        ]
    endpoint: Unstructured = {}
    if options.endpoint is not None:
        host, port = options.endpoint
        endpoint["controlPlaneEndpoint"] = {"host": host, "port": port}
    labels = {"labels": {**options.labels}} if options.labels else {}
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": {"name": name, "namespace": namespace, **labels},
        "spec": {
            **endpoint,
            "clusterNetwork": {
                "pods": {"cidrBlocks": [POD_NETWORK]},
                "services": {"cidrBlocks": ["10.96.0.0/16"]},
                "serviceDomain": "cluster.local",
            },
            "topology": topology,
        },
    }


def parse_variables(texts: Iterable[str]) -> dict[str, Any]:
    """The values of variables from `NAME=VALUE`, where the value is YAML.

    `NAME.FIELD=VALUE` is a field of an object: several of them make one.
    """
    variables: dict[str, Any] = {}
    for text in texts:
        path, separator, value = text.partition("=")
        names = path.split(".")
        if not (separator and all(names) and _set_field(variables, names, value)):
            raise InvalidInputError(
                f"{text!r} sets no variable.",
                reason="A variable has a name and a value in YAML. A field of it comes after a "
                "dot.",
                hint="Write it as NAME=VALUE or NAME.FIELD=VALUE, such as machines.dies=20.",
            )
    return variables


def _set_field(fields: dict[str, Any], names: Sequence[str], value: str) -> bool:
    """Set a field of nested objects. False if one has a value already, or the YAML is invalid."""
    *parents, last = names
    for parent in parents:
        inner = fields.setdefault(parent, {})
        if not isinstance(inner, dict):
            return False
        fields = cast("dict[str, Any]", inner)
    try:
        fields[last] = yaml.safe_load(value)
    except yaml.YAMLError:
        return False
    return True


def _check_variables(names: Iterable[str], cluster_class: ClusterClass) -> None:
    inline = {variable.name for variable in cluster_class.spec.variables}
    known = inline | {variable.name for variable in cluster_class.status.variables}
    if unknown := sorted({*names} - known):
        raise InvalidInputError(
            f"ClusterClass {cluster_class.name} has no variable {unknown[0]}.",
            reason=f"Its variables: {', '.join(sorted(known)) or 'none'}.",
            hint="Name one of them.",
        )


def upgrade_patch(version: str) -> list[Operation]:
    """The JSON patch of a Cluster that upgrades it."""
    return [{"op": "replace", "path": "/spec/topology/version", "value": version}]


def scale_patch(cluster: Cluster, options: ScaleOptions) -> list[Operation]:
    """The JSON patch of a Cluster that changes its numbers."""
    operations: list[Operation] = []
    if options.control_plane_replicas is not None:
        path = "/spec/topology/controlPlane/replicas"
        operations.append({"op": "add", "path": path, "value": options.control_plane_replicas})
    if options.workers is not None:
        path, name = _worker_group(cluster, options.pool)
        # The index was looked up: if the list has changed since, the patch must fail.
        operations.append({"op": "test", "path": f"{path}/name", "value": name})
        operations.append({"op": "add", "path": f"{path}/replicas", "value": options.workers})
    return operations


def patch_text(cluster: Cluster, operations: Sequence[Operation]) -> str:
    """A JSON patch in YAML, with the command that would send it."""
    namespace = f" -n {cluster.namespace}" if cluster.namespace else ""
    patch = json.dumps([*operations], separators=(",", ":"))
    command = f"kubectl patch cluster {cluster.name}{namespace} --type=json -p '{patch}'"
    return f"# {command}\n{yaml.safe_dump([*operations], sort_keys=False)}"


def known_versions(control_plane_kind: str | None) -> Sequence[str]:
    """The versions that a kind of control plane can have. Empty if Capelin cannot know them."""
    ours = control_plane_kind in {"CapelinControlPlane", "CapelinControlPlaneTemplate"}
    return KNOWN_KUBERNETES if ours else ()


def topology_version(cluster: Cluster) -> str:
    """The desired version of a Cluster."""
    topology = cluster.spec.topology
    if topology is None or topology.version is None:
        raise InvalidInputError(
            f"Cluster {cluster.name} does not use a ClusterClass.",
            reason="Its control plane and its workers have versions and numbers of their own.",
            hint="Change these objects with kubectl.",
        )
    return topology.version


def _worker_class(cluster_class: ClusterClass) -> tuple[str, str]:
    workers = cluster_class.spec.workers
    for kind, classes in (
        ("machinePools", workers.machine_pools),
        ("machineDeployments", workers.machine_deployments),
    ):
        if classes and classes[0].class_:
            return kind, classes[0].class_
    raise InvalidInputError(
        f"ClusterClass {cluster_class.name} has no workers.",
        reason="It names neither MachinePools nor MachineDeployments.",
        hint="Ask for 0 workers, or choose another class.",
    )


def _worker_group(cluster: Cluster, pool: str | None) -> tuple[str, str]:
    """The path of a group of workers in a Cluster, and its name."""
    topology_version(cluster)
    workers = cluster.spec.topology.workers if cluster.spec.topology else WorkersTopology()
    groups = [
        (f"/spec/topology/workers/{kind}/{index}", entry.name or "")
        for kind, entries in (
            ("machinePools", workers.machine_pools),
            ("machineDeployments", workers.machine_deployments),
        )
        for index, entry in enumerate(entries)
    ]
    chosen = [group for group in groups if pool in {None, group[1]}]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(name for _, name in groups) or "none"
    what = "several pools" if pool is None else f"no pool {pool}"
    raise InvalidInputError(
        f"Cluster {cluster.name} has {what if groups else 'no workers'}.",
        reason=f"Its pools are: {names}.",
        hint="Name one of them with --pool.",
    )


def rejected_cluster(
    error: ApiError, name: str, cluster_class: ClusterClass | None = None
) -> Exception:
    """The error for people if a Cluster is invalid. Any other error stays as it is.

    The ClusterClass has the schemas of the variables, which the hint describes.
    """
    if not isinstance(error, Invalid):
        return error
    causes = [
        (str(each.get("field") or ""), str(each.get("message") or "")) for each in error.causes
    ]
    variables = [
        (match["name"], match["path"])
        for field, _ in causes
        if (match := _VARIABLE.match(field)) is not None
    ]
    reasons = [f"{_field(field)}: {_VALUE.sub('', message)}." for field, message in causes]
    reason = " ".join(reasons) or _WEBHOOK.sub("", str(error))
    if not variables:
        return InvalidInputError(
            f"Cluster {name} is not valid.", reason=reason, hint="Change it, and try again."
        )
    return InvalidInputError(
        f"Variable {''.join(variables[0])} of cluster {name} has an invalid value.",
        reason=reason,
        hint=" ".join(
            f"{''.join(variable)} takes {description}."
            for variable in dict.fromkeys(variables)
            if (description := _described(*variable, cluster_class))
        ),
    )


def describe_schema(schema: Mapping[str, Any]) -> str:
    """The values that a schema accepts. Empty if it accepts all."""
    if choices := schema.get("enum"):
        return f"one of {', '.join(str(choice) for choice in choices if choice != '')}"
    kind = schema.get("type")
    limits = _range(schema.get("minimum"), schema.get("maximum"))
    fields = ", ".join(cast("dict[str, Any]", schema.get("properties") or {}))
    pattern = schema.get("pattern")
    descriptions = {
        "integer": f"an integer{limits}",
        "number": f"a number{limits}",
        "boolean": "true or false",
        "array": "a list",
        "object": f"an object with the fields {fields}" if fields else "an object",
        "string": f"a string that matches {pattern}" if pattern else "a string",
    }
    return descriptions.get(str(kind), "")


def _range(minimum: float | None, maximum: float | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    if minimum is not None:
        return f" of at least {minimum}"
    return "" if maximum is None else f" of at most {maximum}"


def _described(name: str, path: str, cluster_class: ClusterClass | None) -> str:
    if cluster_class is None:
        return ""
    schemas = {
        **{
            variable.name: variable.definitions[0].schema_
            for variable in cluster_class.status.variables
            if variable.definitions
        },
        **{variable.name: variable.schema_ for variable in cluster_class.spec.variables},
    }
    if name not in schemas:
        return ""
    schema: dict[str, Any] = schemas[name].openapi_schema
    for part in filter(None, path.split(".")):
        schema = cast("dict[str, Any]", schema.get("properties") or {}).get(part) or {}
    return describe_schema(schema)


def _field(field: str) -> str:
    variable = _VARIABLE.match(field)
    return field if variable is None else f"{variable['name']}{variable['path']}"
