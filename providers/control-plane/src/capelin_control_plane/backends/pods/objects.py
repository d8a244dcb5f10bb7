"""The objects of a control plane in the management cluster, from its desired state. Pure."""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from capelin.api import Unstructured

from capelin_control_plane.backends.pods.konnectivity import AGENT_PORT, agents_service
from capelin_control_plane.backends.pods.membership import EtcdState
from capelin_control_plane.backends.pods.names import (
    API_SERVER_PORT,
    DIGEST_ANNOTATION,
    ETCD_CLIENT_PORT,
    ETCD_PEER_PORT,
    FILES,
    OWNER_ANNOTATION,
    Names,
    items_at,
)
from capelin_control_plane.backends.pods.patches import patched
from capelin_control_plane.backends.pods.workloads import (
    api_server_deployment,
    controller_deployment,
    etcd_stateful_set,
)
from capelin_control_plane.desired.arguments import CONTROLLER_PORTS
from capelin_control_plane.desired.component_files import ENCRYPTION_FLAG
from capelin_control_plane.desired.control_plane import (
    PROGRAMS,
    Component,
    ControlPlane,
    InvalidSpecError,
)


@dataclass(frozen=True, slots=True)
class Workload:
    """The object that runs a component, and the digest of its pod template."""

    component: Component
    manifest: Unstructured
    digest: str

    def scaled(self, replicas: int) -> "Workload":
        """The same with another number of pods."""
        spec = {**self.manifest["spec"], "replicas": replicas}
        return replace(self, manifest={**self.manifest, "spec": spec})


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredObjects:
    """The objects of a control plane, except the Secret with its certificates."""

    supporting: tuple[Unstructured, ...]
    """Services, PodDisruptionBudgets, NetworkPolicies."""
    etcd: Workload
    api_server: Workload
    controllers: tuple[Workload, ...]

    @property
    def digests(self) -> Mapping[Component, str]:
        """By component, the digest of the template of its pods."""
        workloads = (self.etcd, self.api_server, *self.controllers)
        return {workload.component: workload.digest for workload in workloads}


def desired_objects(
    desired: ControlPlane,
    names: Names,
    service: Unstructured,
    konnectivity_pem: bytes = b"",
    *,
    restored: str | None = None,
) -> DesiredObjects:
    """The objects of a control plane.

    Args:
        desired: The control plane.
        names: The names of its objects.
        service: The Service of its API servers.
        konnectivity_pem: The certificate of its servers of konnectivity, if it is on.
        restored: The restore whose data etcd's members use.

    Raises:
        InvalidSpecError: a patch cannot be applied or makes a forbidden change, or probes could
        not work.
    """
    if desired.settings["kube-apiserver"].arguments.get("anonymous-auth") == "false":
        raise InvalidSpecError(
            "spec.apiServer.extraArgs[anonymous-auth]: kubelets show no certificate when they probe"
            " the pods of API servers, and none would become ready. Leave it out, or write backend:"
            " Processes"
        )
    supporting = [
        service,
        _etcd_service(names),
        _etcd_members_service(names),
        *(_disruption_budget(names, component) for component in PROGRAMS),
        *_network_policies(desired, names),
    ]
    if desired.pods.konnectivity.enabled:
        supporting.append(agents_service(desired, names))
    return DesiredObjects(
        supporting=tuple(finished(manifest, desired, names) for manifest in supporting),
        etcd=_workload("etcd", etcd_stateful_set(desired, names, restored), desired, names),
        api_server=_workload(
            "kube-apiserver",
            api_server_deployment(desired, names, konnectivity_pem),
            desired,
            names,
        ),
        controllers=tuple(
            _workload(component, controller_deployment(desired, names, component), desired, names)
            for component in CONTROLLER_PORTS
        ),
    )


def pki_secret(
    desired: ControlPlane, names: Names, data: Mapping[str, bytes], *, owner: Unstructured
) -> Unstructured:
    """The Secret with certificates, keys and kubeconfigs.

    Args:
        desired: The control plane.
        names: The names of its objects.
        data: The files.
        owner: The ConfigMap about etcd's cluster. The Secret is garbage collected with it, because
            the provider may not delete Secrets.
    """
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": names.etcd_state,
        "uid": owner["metadata"]["uid"],
    }
    manifest: Unstructured = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": names.pki,
            "namespace": names.namespace,
            "ownerReferences": [reference],
        },
        "type": "Opaque",
        "data": {name: base64.b64encode(content).decode() for name, content in data.items()},
    }
    return labelled(manifest, desired, names, None)


def is_owned_by(secret: Unstructured | None, state: Unstructured) -> bool:
    """Whether the Secret is garbage collected with this ConfigMap about etcd's cluster.

    An owner of the same name is not enough: with the uid of another one, the Secret is collected
    at once.
    """
    owners = items_at(secret, "metadata", "ownerReferences")
    return any(owner.get("uid") == state["metadata"]["uid"] for owner in owners)


def without_data(secret: Unstructured) -> Unstructured:
    """The Secret without its files, to be applied."""
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    metadata = secret["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {field: metadata[field] for field in kept if field in metadata},
        "type": secret["type"],
    }


def etcd_state(desired: ControlPlane, names: Names, state: EtcdState) -> Unstructured:
    """The ConfigMap that stores whether etcd's cluster has formed, its members and last restore.

    A member that starts without data would begin an empty cluster before that, and never after.
    Containers read it whenever they start, so nothing is restarted when it changes.
    """
    manifest: Unstructured = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": names.etcd_state, "namespace": names.namespace},
        "data": dict(state.data(names)),
    }
    return labelled(manifest, desired, names, "etcd")


def labelled(
    manifest: Unstructured, desired: ControlPlane, names: Names, component: Component | None
) -> Unstructured:
    """The object with the labels and annotations of all objects of a control plane."""
    metadata = manifest["metadata"]
    labels = names.all_labels(desired.cluster, component)
    annotations = {OWNER_ANNOTATION: names.control_plane}
    metadata["labels"] = metadata.get("labels", {}) | labels
    metadata["annotations"] = metadata.get("annotations", {}) | annotations
    return manifest


def finished(manifest: Unstructured, desired: ControlPlane, names: Names) -> Unstructured:
    """An object with the labels and patches that apply to it.

    Raises:
        InvalidSpecError: a patch cannot be applied, or makes a forbidden change.
    """
    return _finished(manifest, desired, names, _component_of(manifest, names))


def _component_of(manifest: Unstructured, names: Names) -> Component | None:
    name = manifest["metadata"]["name"]
    if name == names.etcd_members:
        return "etcd"
    if name == names.konnectivity:
        return "kube-apiserver"
    return next(
        (component for component in PROGRAMS if name == names.of_component(component)), None
    )


def _workload(
    component: Component, manifest: Unstructured, desired: ControlPlane, names: Names
) -> Workload:
    complete = _finished(manifest, desired, names, component)
    template = complete["spec"]["template"]
    file = desired.encryption.current
    if component == "kube-apiserver" and file is not None:
        _check_encryption(template, f"--{ENCRYPTION_FLAG}={FILES.pki / file.name}")
    digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:16]
    template["metadata"]["annotations"][DIGEST_ANNOTATION] = digest
    _add_defaults(complete)
    return Workload(component, complete, digest)


def _add_defaults(workload: Unstructured) -> None:
    """Add defaults of the API server where it compares a value as a whole.

    Without them, each comparison with the live object finds a difference. The digest does not
    include them, because pods of earlier releases have none.
    """
    spec = workload["spec"]
    for container in spec["template"]["spec"]["containers"]:
        for variable in container.get("env", ()):
            if (field := variable.get("valueFrom", {}).get("fieldRef")) is not None:
                field.setdefault("apiVersion", "v1")
    for claim in spec.get("volumeClaimTemplates", ()):
        claim["spec"].setdefault("volumeMode", "Filesystem")
        claim.setdefault("status", {"phase": "Pending"})


def _check_encryption(template: Unstructured, flag: str) -> None:
    """Reject a patch with which an API server could not read objects that others store."""
    flags = [
        present
        for container in items_at(template, "spec", "containers")
        for present in container.get("args", ())
        if present.startswith(f"--{ENCRYPTION_FLAG}")
    ]
    if flags != [flag]:
        raise InvalidSpecError(
            f"spec.pods.patches: a patch changes the flag {ENCRYPTION_FLAG}, which belongs to"
            " spec.apiServer.encryption: leave it out"
        )


def _finished(
    manifest: Unstructured, desired: ControlPlane, names: Names, component: Component | None
) -> Unstructured:
    own = labelled(manifest, desired, names, component)
    return patched(own, component, desired.pods.patches)


# Services, disruption budgets and network policies


def _etcd_service(names: Names) -> Unstructured:
    """Leads API servers to a member that serves, as long as there is one."""
    return _service(names, names.of_component("etcd"), {})


def _etcd_members_service(names: Names) -> Unstructured:
    """Names each member, also before it is ready: it becomes so only with the others."""
    return _service(
        names, names.etcd_members, {"clusterIP": "None", "publishNotReadyAddresses": True}
    )


def _service(names: Names, name: str, spec: Mapping[str, Any]) -> Unstructured:
    ports = {"client": ETCD_CLIENT_PORT, "peer": ETCD_PEER_PORT}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": names.namespace},
        "spec": {
            "selector": names.labels("etcd"),
            "ports": [
                {"name": port, "port": number, "targetPort": number, "protocol": "TCP"}
                for port, number in ports.items()
            ],
            **spec,
        },
    }


def _disruption_budget(names: Names, component: Component) -> Unstructured:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": names.of_component(component), "namespace": names.namespace},
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": names.labels(component)},
            # A pod that does not work must not keep its node from being drained.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _network_policies(desired: ControlPlane, names: Names) -> list[Unstructured]:
    """API servers are open to all, etcd to them and its members, and the rest to no one."""
    ports = [API_SERVER_PORT, *([AGENT_PORT] if desired.pods.konnectivity.enabled else [])]
    peers = [_peer(names, "etcd")]
    clients = [_peer(names, "kube-apiserver")]
    return [
        _network_policy(names, "kube-apiserver", [{"ports": [_port(port) for port in ports]}]),
        _network_policy(
            names,
            "etcd",
            [
                {"from": clients, "ports": [_port(ETCD_CLIENT_PORT)]},
                {"from": peers, "ports": [_port(ETCD_CLIENT_PORT), _port(ETCD_PEER_PORT)]},
            ],
        ),
        _network_policy(names, "kube-controller-manager", []),
        _network_policy(names, "kube-scheduler", []),
    ]


def _network_policy(names: Names, component: Component, ingress: list[Any]) -> Unstructured:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": names.of_component(component), "namespace": names.namespace},
        "spec": {
            "podSelector": {"matchLabels": names.labels(component)},
            "policyTypes": ["Ingress"],
            # The API server stores no empty list, and would get it in each comparison.
            **({"ingress": ingress} if ingress else {}),
        },
    }


def _peer(names: Names, component: Component) -> Mapping[str, Any]:
    return {"podSelector": {"matchLabels": names.labels(component)}}


def _port(port: int) -> Mapping[str, Any]:
    return {"port": port, "protocol": "TCP"}
