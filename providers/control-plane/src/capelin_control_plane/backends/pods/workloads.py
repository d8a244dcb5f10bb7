"""The workloads of a control plane's components: a StatefulSet and Deployments. Pure."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from capelin.api import Unstructured

from capelin_control_plane.api.pod_settings import Spread
from capelin_control_plane.backends.pods.konnectivity import EGRESS_SELECTOR_FILE, with_server
from capelin_control_plane.backends.pods.membership import MEMBERS_KEY, STATE_KEY
from capelin_control_plane.backends.pods.names import (
    API_SERVER_PORT,
    ETCD_CLIENT_PORT,
    ETCD_METRICS_PORT,
    ETCD_PEER_PORT,
    FILES,
    OWNER_ANNOTATION,
    PKI_FOLDER,
    RESTORED_ANNOTATION,
    VERSION_LABEL,
    Names,
)
from capelin_control_plane.backends.pods.pki_secret import files_of
from capelin_control_plane.backends.restore_member import DATA
from capelin_control_plane.desired.arguments import (
    CONTROLLER_PORTS,
    GO_ENVIRONMENT,
    SHUTDOWN_DELAY,
    Controller,
    EtcdMember,
    api_server_arguments,
    controller_arguments,
    etcd_arguments,
    shutdown_delay,
)
from capelin_control_plane.desired.control_plane import Component, ControlPlane

ETCD_TAG = "3.6.8-0"
"""The etcd of all Kubernetes versions: an upgrade of a control plane never changes etcd."""

# The non-root user of distroless images.
_USER = 65532
ETCD_VOLUME = PurePosixPath("/var/lib/etcd")
_FIRST_DATA = ETCD_VOLUME / "data"

# After SIGTERM, a server serves until every node has removed it from the endpoints of its Service.
# Then it answers 429 with Retry-After instead of breaking connections, and ends watches evenly.
# GOAWAY spreads clients over new servers.
_SHUTDOWN = {
    SHUTDOWN_DELAY: "15s",
    "shutdown-send-retry-after": "true",
    "shutdown-watch-termination-grace-period": "10s",
    "goaway-chance": "0.001",
}
PLUGIN_VOLUME = "kms-plugin-"
"""The names of volumes with the sockets of KMS plugins begin with it."""
_LONGEST_REQUEST_SECONDS = 60
_MARGIN_SECONDS = 15

_ENVIRONMENT: Mapping[Component, Mapping[str, str]] = {
    # The message of a panic is the last that it writes, and not cut off by a stack.
    "etcd": {"GOTRACEBACK": "none"},
    "kube-apiserver": {},
    "kube-controller-manager": {},
    "kube-scheduler": {},
}

# The measured use of each in a control plane with nodes and little load. Users set limits.
_REQUESTS: Mapping[Component, Mapping[str, str]] = {
    "etcd": {"cpu": "30m", "memory": "64Mi"},
    "kube-apiserver": {"cpu": "50m", "memory": "256Mi"},
    "kube-controller-manager": {"cpu": "20m", "memory": "64Mi"},
    "kube-scheduler": {"cpu": "10m", "memory": "40Mi"},
}


def termination_seconds(arguments: Sequence[str]) -> int:
    """Grace period of an API server: its delay, the longest request, and a margin."""
    return int(shutdown_delay(arguments)) + _LONGEST_REQUEST_SECONDS + _MARGIN_SECONDS


def folder_of(restored: str | None) -> str:
    """The folder in the volumes of members, after a restore or without one."""
    if restored is None:
        return _FIRST_DATA.name
    return f"restored-{hashlib.sha256(restored.encode()).hexdigest()[:10]}"


def data_directory(restored: str | None) -> PurePosixPath:
    return _FIRST_DATA if restored is None else ETCD_VOLUME / folder_of(restored) / DATA


def etcd_stateful_set(
    desired: ControlPlane, names: Names, restored: str | None = None
) -> Unstructured:
    """The StatefulSet of etcd's members, after a restore or without one."""
    member = EtcdMember(
        name="$(POD_NAME)",
        data=data_directory(restored),
        listen_address="0.0.0.0",  # noqa: S104 - of the pod, behind a policy
        advertise_host=f"$(POD_NAME).{names.etcd_members}.{names.namespace}.svc",
        client_port=ETCD_CLIENT_PORT,
        peer_port=ETCD_PEER_PORT,
        metrics_port=ETCD_METRICS_PORT,
        state="$(INITIAL_CLUSTER_STATE)",
    )
    token = f"{names.namespace}/{names.control_plane}"
    arguments = etcd_arguments(desired, FILES, member, members="$(INITIAL_CLUSTER)", token=token)
    template = _template(
        desired,
        names,
        "etcd",
        arguments,
        probes={
            # A learner is alive, and never ready.
            "startupProbe": _probe("HTTP", ETCD_METRICS_PORT, "/livez", failures=300),
            "livenessProbe": _probe("HTTP", ETCD_METRICS_PORT, "/livez", period=10, failures=8),
            "readinessProbe": _probe("HTTP", ETCD_METRICS_PORT, "/readyz", failures=3),
        },
        environment=[
            _from_field("POD_NAME", "metadata.name"),
            # From a ConfigMap, because they change while no member restarts.
            _from_state("INITIAL_CLUSTER", MEMBERS_KEY, names),
            _from_state("INITIAL_CLUSTER_STATE", STATE_KEY, names),
        ],
        mounts=[{"name": "data", "mountPath": str(ETCD_VOLUME)}],
    )
    volume = desired.pods.etcd_volume
    claims: list[Unstructured] = []
    if volume.medium == "Memory":
        template["spec"]["volumes"].append(
            {"name": "data", "emptyDir": {"medium": "Memory", "sizeLimit": str(volume.size)}}
        )
    else:
        claim: dict[str, Any] = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": str(volume.size)}},
        }
        if volume.storage_class is not None:
            claim["storageClassName"] = volume.storage_class
        metadata = {"name": "data", "labels": names.labels("etcd")}
        claims.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": metadata,
                "spec": claim,
            }
        )
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": names.of_component("etcd"),
            "namespace": names.namespace,
            **({} if restored is None else {"annotations": {RESTORED_ANNOTATION: restored}}),
        },
        "spec": {
            "replicas": desired.etcd_replicas,
            "serviceName": names.etcd_members,
            # Members become ready only with the others.
            "podManagementPolicy": "Parallel",
            # The StatefulSet would begin with the last member, whichever is down: see rollout.py.
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Retain",
                "whenScaled": "Retain",
            },
            "selector": {"matchLabels": names.labels("etcd")},
            "template": template,
            "volumeClaimTemplates": claims,
        },
    }


def api_server_deployment(
    desired: ControlPlane, names: Names, konnectivity_pem: bytes = b""
) -> Unstructured:
    """The Deployment of the API servers, each with a konnectivity server if that is on."""
    has_konnectivity = desired.pods.konnectivity.enabled
    egress = {"egress-selector-config-file": str(FILES.pki / EGRESS_SELECTOR_FILE)}
    arguments = api_server_arguments(
        desired,
        FILES,
        address="0.0.0.0",  # noqa: S104 - of the pod
        advertise_address="$(POD_IP)",
        port=API_SERVER_PORT,
        etcd_urls=tuple(
            f"https://{host}:{ETCD_CLIENT_PORT}" for host in _etcd_hosts(desired, names)
        ),
        defaults={**_SHUTDOWN, **(egress if has_konnectivity else {})},
    )
    # Without etcd no API server is healthy, and a restart would not help.
    alive = "/livez?exclude=etcd"
    template = _template(
        desired,
        names,
        "kube-apiserver",
        arguments,
        probes={
            "startupProbe": _probe("HTTPS", API_SERVER_PORT, alive, failures=240),
            "livenessProbe": _probe(
                "HTTPS", API_SERVER_PORT, alive, period=10, failures=8, timeout=15
            ),
            "readinessProbe": _probe("HTTPS", API_SERVER_PORT, "/readyz", failures=3, timeout=15),
        },
        environment=[_from_field("POD_IP", "status.podIP")],
        grace=termination_seconds(arguments),
        # The program in upstream's image has this capability, and does not start without it.
        capabilities=("NET_BIND_SERVICE",),
    )
    if desired.encryption.current is not None:
        _mount_plugins(template["spec"], desired.encryption.current.sockets)
    if has_konnectivity:
        template = with_server(template, desired, names, konnectivity_pem)
    return _deployment(desired, names, "kube-apiserver", desired.replicas, template)


def _mount_plugins(pod: dict[str, Any], sockets: Iterable[PurePosixPath]) -> None:
    """Mount the folders of the sockets of KMS plugins on the node.

    A mount of a socket itself would end with the plugin that created it.
    """
    for number, folder in enumerate(sorted({str(socket.parent) for socket in sockets})):
        name = f"{PLUGIN_VOLUME}{number}"
        pod["volumes"].append({"name": name, "hostPath": {"path": folder, "type": "Directory"}})
        pod["containers"][0]["volumeMounts"].append(
            {"name": name, "mountPath": folder, "readOnly": True}
        )


def _etcd_hosts(desired: ControlPlane, names: Names) -> list[str]:
    """The hosts of etcd for an API server: the desired members, which stay when others leave.

    The Service leads to every member, also to one that leaves. Its answers are errors then.
    """
    return [names.member_host(index) for index in range(desired.etcd_replicas)]


def controller_deployment(
    desired: ControlPlane, names: Names, component: Controller
) -> Unstructured:
    """The Deployment of the controller managers or the schedulers, of which one leads."""
    port = CONTROLLER_PORTS[component]
    arguments = controller_arguments(
        desired,
        FILES,
        component,
        address="0.0.0.0",  # noqa: S104 - of the pod
        elects_leader=True,
    )
    template = _template(
        desired,
        names,
        component,
        arguments,
        probes={
            "startupProbe": _probe("HTTPS", port, "/healthz", failures=240),
            "livenessProbe": _probe("HTTPS", port, "/healthz", period=10, failures=8, timeout=15),
            "readinessProbe": _probe("HTTPS", port, "/healthz", period=5, failures=3),
        },
    )
    # A second one takes over at once if the node of the first is lost. More would never lead.
    replicas = min(desired.replicas, 2)
    return _deployment(desired, names, component, replicas, template)


def _deployment(
    desired: ControlPlane, names: Names, component: Component, replicas: int, template: Unstructured
) -> Unstructured:
    if desired.rollout_after is not None:
        annotations = template["metadata"]["annotations"]
        annotations["controlplane.cluster.x-k8s.io/capelin-rollout-after"] = (
            desired.rollout_after.isoformat()
        )
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": names.of_component(component), "namespace": names.namespace},
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": names.labels(component)},
            # No server goes before its successor is ready.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
            },
            "template": template,
        },
    }


def _template(
    desired: ControlPlane,
    names: Names,
    component: Component,
    arguments: tuple[str, ...],
    *,
    probes: Mapping[str, Any],
    environment: Sequence[Mapping[str, Any]] = (),
    mounts: Sequence[Mapping[str, Any]] = (),
    grace: int = 30,
    capabilities: tuple[str, ...] = (),
) -> Unstructured:
    settings = desired.settings[component]
    variables = {**GO_ENVIRONMENT[component], **_ENVIRONMENT[component], **settings.environment}
    if settings.memory_bytes is not None:
        # The garbage collector works harder before the kernel ends the program.
        variables.setdefault("GOMEMLIMIT", str(settings.memory_bytes * 9 // 10))
    allowed = {"drop": ["ALL"]} | ({"add": list(capabilities)} if capabilities else {})
    container: dict[str, Any] = {
        "name": component,
        "image": _image_of(component, desired),
        "imagePullPolicy": "IfNotPresent",
        "command": [component],
        "args": list(arguments),
        "env": [
            *environment,
            *({"name": name, "value": value} for name, value in sorted(variables.items())),
        ],
        "resources": _resources(desired, component),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": allowed,
            "readOnlyRootFilesystem": True,
        },
        # Why it ended, where no message was written.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "pki", "mountPath": str(PKI_FOLDER), "readOnly": True},
            *mounts,
        ],
        **probes,
    }
    pki = {
        "secretName": names.pki,
        "defaultMode": 0o440,
        "items": [{"key": file, "path": file} for file in files_of(component, desired)],
    }
    secrets, placement = desired.pods.images.pull_secrets, desired.pods.placement
    labels = names.labels(component)
    return {
        "metadata": {
            "labels": {
                **names.all_labels(desired.cluster, component),
                **({} if component == "etcd" else {VERSION_LABEL: _label(desired.version)}),
            },
            "annotations": {OWNER_ANNOTATION: names.control_plane},
        },
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [container],
            **({"imagePullSecrets": [{"name": name} for name in secrets]} if secrets else {}),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "fsGroup": _USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "terminationGracePeriodSeconds": grace,
            "topologySpreadConstraints": [
                _spread("topology.kubernetes.io/zone", placement.zones, labels),
                _spread("kubernetes.io/hostname", placement.nodes, labels),
            ],
            "volumes": [{"name": "pki", "secret": pki}],
        },
    }


def _spread(key: str, spread: Spread, labels: Mapping[str, str]) -> Mapping[str, Any]:
    constraint = {
        "topologyKey": key,
        "maxSkew": 1,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    if spread == "Preferred":
        return constraint
    # Otherwise a lost node counts as one without pods, and no pod may run elsewhere.
    return {**constraint, "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Honor"}


def _image_of(component: Component, desired: ControlPlane) -> str:
    images = desired.pods.images
    if component == "etcd":
        return images.etcd or f"{images.repository}/etcd:{ETCD_TAG}"
    return f"{images.repository}/{component}:{desired.version}"


def _resources(desired: ControlPlane, component: Component) -> dict[str, Any]:
    settings = desired.settings[component]
    limits: dict[str, str] = {}
    requests = dict(_REQUESTS[component])
    if settings.memory_bytes is not None:
        limits["memory"] = requests["memory"] = str(settings.memory_bytes)
    if settings.cpus is not None:
        limits["cpu"] = requests["cpu"] = f"{int(settings.cpus * 1000)}m"
    return {"requests": requests} | ({"limits": limits} if limits else {})


def _probe(
    scheme: str, port: int, path: str, *, period: int = 1, failures: int, timeout: int = 5
) -> Mapping[str, Any]:
    return {
        "httpGet": {"path": path, "port": port, "scheme": scheme},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }


def _from_field(name: str, path: str) -> Mapping[str, Any]:
    return _env_from(name, {"fieldRef": {"fieldPath": path}})


def _from_state(name: str, key: str, names: Names) -> Mapping[str, Any]:
    return _env_from(name, {"configMapKeyRef": {"name": names.etcd_state, "key": key}})


def _env_from(name: str, source: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"name": name, "valueFrom": source}


def _label(version: str) -> str:
    """A version as the value of a label, which has no plus sign."""
    return version.replace("+", "_")
