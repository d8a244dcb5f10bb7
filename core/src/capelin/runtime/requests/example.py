"""A made-up cluster for requests that are about no cluster in particular."""

from typing import Any
from uuid import UUID

from capelin.api import Unstructured
from capelin.runtime.requests.scene import Scene, UsedTemplate

CORE = "cluster.x-k8s.io/v1beta2"
KUBEADM = "bootstrap.cluster.x-k8s.io/v1beta2"
KUBEADM_CONTROL_PLANE = "controlplane.cluster.x-k8s.io/v1beta2"
DEV = "infrastructure.cluster.x-k8s.io/v1beta2"

_VERSION = "v1.34.4"
_NODE = {
    "nodeRegistration": {
        "criSocket": "unix:///run/containerd/containerd.sock",
        "kubeletExtraArgs": [{"name": "eviction-hard", "value": "nodefs.available<0%"}],
    }
}


def example_scene(
    name: str = "example",
    namespace: str = "default",
    *,
    from_version: str = "v1.33.13",
    to_version: str = _VERSION,
    variables: dict[str, Any] | None = None,
) -> Scene:
    """A cluster with a control plane, a MachineDeployment and a MachinePool on the Dev provider."""
    cluster = _cluster(name, namespace, from_version)
    machine = _machine(name, namespace, to_version)
    return Scene(
        cluster=cluster,
        from_version=from_version,
        to_version=to_version,
        templates=[
            _used(cluster, "Cluster", "spec.infrastructureRef", _dev("DevClusterTemplate", name)),
            _used(
                cluster,
                "Cluster",
                "spec.controlPlaneRef",
                _template(KUBEADM_CONTROL_PLANE, "KubeadmControlPlaneTemplate", name, _KUBEADM),
                controlPlane=_control_plane(name),
            ),
            _used(
                cluster,
                "KubeadmControlPlane",
                "spec.machineTemplate.spec.infrastructureRef",
                _dev("DevMachineTemplate", f"{name}-control-plane"),
                controlPlane=_control_plane(name),
            ),
            *_workers(cluster, "MachineDeployment", "DevMachineTemplate", "md-0"),
            *_workers(cluster, "MachinePool", "DevMachinePoolTemplate", "mp-0"),
        ],
        variables={"builtin": _builtin(cluster), **(variables or {})},
        machine=machine,
        machine_set=_machine_set(name, namespace, machine),
    )


_KUBEADM: Unstructured = {
    "kubeadmConfigSpec": {
        "clusterConfiguration": {
            "apiServer": {"extraArgs": [{"name": "audit-log-maxage", "value": "7"}]}
        },
        "initConfiguration": _NODE,
        "joinConfiguration": _NODE,
    }
}


def _cluster(name: str, namespace: str, version: str) -> Unstructured:
    return {
        "apiVersion": CORE,
        "kind": "Cluster",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": str(UUID(int=1)),
            "labels": {"cluster.x-k8s.io/cluster-name": name},
        },
        "spec": {
            "clusterNetwork": {
                "serviceDomain": "cluster.local",
                "services": {"cidrBlocks": ["10.128.0.0/12"]},
                "pods": {"cidrBlocks": ["192.168.0.0/16"]},
            },
            "topology": {
                "classRef": {"name": "example"},
                "version": version,
                "controlPlane": {"replicas": 3},
                "workers": {
                    "machineDeployments": [{"class": "default", "name": "md-0", "replicas": 2}],
                    "machinePools": [{"class": "default", "name": "mp-0", "replicas": 2}],
                },
            },
        },
    }


def _builtin(cluster: Unstructured) -> Unstructured:
    metadata, spec = cluster["metadata"], cluster["spec"]
    network = spec["clusterNetwork"]
    where = {"name": "example", "namespace": metadata["namespace"]}
    return {
        "cluster": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "metadata": {"labels": metadata["labels"]},
            "topology": {
                "version": spec["topology"]["version"],
                "class": where["name"],
                "classNamespace": where["namespace"],
                "classRef": where,
            },
            "network": {
                "serviceDomain": network["serviceDomain"],
                "services": network["services"]["cidrBlocks"],
                "pods": network["pods"]["cidrBlocks"],
            },
        }
    }


def _control_plane(name: str) -> Unstructured:
    machines = {"infrastructureRef": {"name": f"{name}-control-plane"}}
    return {"version": _VERSION, "name": name, "replicas": 3, "machineTemplate": machines}


def _workers(
    cluster: Unstructured, kind: str, machines: str, topology_name: str
) -> list[UsedTemplate]:
    name = f"{cluster['metadata']['name']}-{topology_name}"
    builtin = {
        "version": _VERSION,
        "class": "default",
        "name": name,
        "topologyName": topology_name,
        "replicas": 2,
        "bootstrap": {"configRef": {"name": name}},
        "infrastructureRef": {"name": name},
    }
    own = {kind[0].lower() + kind[1:]: builtin}
    joining = _template(KUBEADM, "KubeadmConfigTemplate", name, {"joinConfiguration": _NODE})
    return [
        _used(cluster, kind, "spec.template.spec.bootstrap.configRef", joining, name, **own),
        _used(
            cluster, kind, "spec.template.spec.infrastructureRef", _dev(machines, name), name, **own
        ),
    ]


def _used(
    cluster: Unstructured,
    kind: str,
    path: str,
    template: Unstructured,
    name: str = "",
    **builtin: Unstructured,
) -> UsedTemplate:
    metadata = cluster["metadata"]
    holder = {
        "apiVersion": KUBEADM_CONTROL_PLANE if kind == "KubeadmControlPlane" else CORE,
        "kind": kind,
        "namespace": metadata["namespace"],
        "name": name or metadata["name"],
        "fieldPath": path,
    }
    return UsedTemplate(template, holder, {"builtin": builtin} if builtin else {})


def _dev(kind: str, name: str) -> Unstructured:
    return _template(DEV, kind, name, {"backend": {"docker": {}}})


def _template(api_version: str, kind: str, name: str, spec: Unstructured) -> Unstructured:
    metadata: Unstructured = {"name": name, "namespace": "default"}
    metadata |= {"labels": {}, "annotations": {}}
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": metadata,
        "spec": {"template": {"spec": spec}},
    }


def _machine(name: str, namespace: str, version: str) -> dict[str, Unstructured]:
    def one(api_version: str, kind: str, spec: Unstructured) -> Unstructured:
        metadata = {"name": f"{name}-0", "namespace": namespace}
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}

    return {
        "machine": one(CORE, "Machine", _machine_spec(name, version)),
        "infrastructureMachine": one(DEV, "DevMachine", {"backend": {"docker": {}}}),
        "bootstrapConfig": one(KUBEADM, "KubeadmConfig", {"joinConfiguration": _NODE}),
    }


def _machine_spec(name: str, version: str) -> Unstructured:
    def reference(kind: str) -> Unstructured:
        group = (KUBEADM if kind == "KubeadmConfig" else DEV).partition("/")[0]
        return {"apiGroup": group, "kind": kind, "name": f"{name}-0"}

    return {
        "clusterName": name,
        "version": version,
        "bootstrap": {"configRef": reference("KubeadmConfig")},
        "infrastructureRef": reference("DevMachine"),
    }


def _machine_set(
    name: str, namespace: str, machine: dict[str, Unstructured]
) -> dict[str, Unstructured]:
    metadata = {"name": name, "namespace": namespace}
    template = {"spec": machine["machine"]["spec"]}
    return {
        "machineSet": {
            "apiVersion": CORE,
            "kind": "MachineSet",
            "metadata": metadata,
            "spec": {
                "clusterName": name,
                "replicas": 2,
                "selector": {"matchLabels": {"cluster.x-k8s.io/cluster-name": name}},
                "template": template,
            },
        },
        "infrastructureMachineTemplate": _dev("DevMachineTemplate", name),
        "bootstrapConfigTemplate": _template(
            KUBEADM, "KubeadmConfigTemplate", name, {"joinConfiguration": _NODE}
        ),
    }
