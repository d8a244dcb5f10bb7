"""Requests of the size and shape that Cluster API sends for a cluster with some workers."""

from typing import Any
from uuid import UUID

KUBEADM = "bootstrap.cluster.x-k8s.io/v1beta2"
KUBEADM_CONTROL_PLANE = "controlplane.cluster.x-k8s.io/v1beta2"
DEV = "infrastructure.cluster.x-k8s.io/v1beta2"
CORE = "cluster.x-k8s.io/v1beta2"

Json = dict[str, Any]


def generate_patches() -> Json:
    """All 20 templates of a cluster: its infrastructure, its control plane, nine kinds of workers.

    About 55 KB.
    """
    builtin = {
        "cluster": {
            "name": "demo",
            "namespace": "default",
            "uid": str(UUID(int=1)),
            "metadata": {"labels": {"team": "blue"}},
            "topology": {
                "version": "v1.34.4",
                "class": "quick",
                "classNamespace": "default",
                "classRef": {"name": "quick", "namespace": "default"},
            },
            "network": {
                "serviceDomain": "cluster.local",
                "services": ["10.128.0.0/12"],
                "pods": ["192.168.0.0/16"],
            },
        }
    }
    items = [infrastructure(), control_plane()]
    for number in range(8):
        items += workers("MachineDeployment", number)
    items += workers("MachinePool", 8)
    for number, item in enumerate(items):
        item["uid"] = str(UUID(int=number))
    return {
        "apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1",
        "kind": "GeneratePatchesRequest",
        "settings": {"policy": "strict"},
        "variables": variables(
            builtin=builtin,
            imageRepository="kindest",
            kubeadmControlPlaneMaxSurge="1",
            preKubeadmCommands=["echo one", "echo two"],
            files=[{"path": "/etc/extra", "content": "hello"}],
            kubeadmConfigTemplateAnnotations={"owner": "blue"},
        ),
        "items": items,
    }


def validate_topology(items: list[Json]) -> Json:
    """The templates of a request for patches, to be checked."""
    return {
        "apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1",
        "kind": "ValidateTopologyRequest",
        "items": [{key: item[key] for key in ("holderReference", "object")} for item in items],
    }


def variables(**values: Any) -> list[Json]:
    return [{"name": name, "value": value} for name, value in values.items()]


def item(kind: str, name: str, path: str, template: Json, own: list[Json]) -> Json:
    holder = {"apiVersion": CORE, "kind": kind, "namespace": "default", "name": name}
    return {
        "uid": "",
        "holderReference": {**holder, "fieldPath": path},
        "object": template,
        "variables": own,
    }


def template(api_version: str, kind: str, name: str, spec: Json) -> Json:
    """A template with the fields that the API server adds."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {
                "cluster.x-k8s.io/cluster-name": "demo",
                "topology.cluster.x-k8s.io/owned": "",
            },
            "annotations": {
                "cluster.x-k8s.io/cloned-from-name": name,
                "cluster.x-k8s.io/cloned-from-groupkind": kind,
            },
        },
        "spec": {"template": {"spec": spec}},
    }


def infrastructure() -> Json:
    zones = [{"name": name, "controlPlane": True} for name in ("fd1", "fd2")]
    spec: Json = {"backend": {"docker": {"failureDomains": zones, "loadBalancer": {}}}}
    made = template(DEV, "DevClusterTemplate", "demo-cluster", spec)
    return item("Cluster", "demo", "spec.infrastructureRef", made, [])


def control_plane() -> Json:
    kubeadm = kubeadm_config("demo-cp")
    kubeadm["clusterConfiguration"] = {
        "apiServer": {
            "certSANs": ["localhost", "127.0.0.1", "0.0.0.0"],  # noqa: S104 - a name in it
            "extraArgs": [{"name": "audit-log-path", "value": "/var/log/audit.log"}],
        },
        "controllerManager": {
            "extraArgs": [{"name": "enable-hostpath-provisioner", "value": "true"}]
        },
    }
    kubeadm["initConfiguration"] = kubeadm["joinConfiguration"]
    spec = {"kubeadmConfigSpec": kubeadm}
    made = template(KUBEADM_CONTROL_PLANE, "KubeadmControlPlaneTemplate", "demo-cp", spec)
    builtin = {"version": "v1.34.4", "name": "demo-cp", "replicas": 3}
    own = variables(builtin={"controlPlane": {**builtin, "metadata": {"labels": {"a": "b"}}}})
    return item("Cluster", "demo", "spec.controlPlaneRef", made, own)


def workers(kind: str, number: int) -> list[Json]:
    """Workers with bootstrap and infrastructure templates."""
    name = f"demo-{number}"
    builtin = {
        "version": "v1.34.4",
        "class": "default-worker",
        "name": name,
        "topologyName": f"md-{number}",
        "replicas": 3,
        "bootstrap": {"configRef": {"name": name}},
        "infrastructureRef": {"name": name},
        "metadata": {"labels": {"pool": name}},
    }
    own = variables(builtin={kind[0].lower() + kind[1:]: builtin})
    machines = {"MachineDeployment": "DevMachineTemplate", "MachinePool": "DevMachinePoolTemplate"}
    mounts = ["/var/run/docker.sock", "/lib/modules", "/dev/mapper"]
    paths = [{"containerPath": path, "hostPath": path, "readOnly": True} for path in mounts]
    machine = {"backend": {"docker": {"preLoadImages": ["pause:3.10"], "extraMounts": paths}}}
    bootstrap = template(KUBEADM, "KubeadmConfigTemplate", name, kubeadm_config(name))
    runs_on = template(DEV, machines[kind], name, machine)
    return [
        item(kind, name, "spec.template.spec.bootstrap.configRef", bootstrap, own),
        item(kind, name, "spec.template.spec.infrastructureRef", runs_on, own),
    ]


def kubeadm_config(name: str) -> Json:
    """A kubeadm configuration with typical files and commands."""
    lines = "".join(f"{name}.setting.{number} = {number * 7919}\n" for number in range(13))
    return {
        "joinConfiguration": {
            "nodeRegistration": {
                "criSocket": "unix:///run/containerd/containerd.sock",
                "kubeletExtraArgs": [
                    {"name": "eviction-hard", "value": "nodefs.available<0%,imagefs.available<0%"},
                    {"name": "node-ip", "value": "::"},
                ],
            }
        },
        "files": [
            {
                "path": f"/etc/capelin/{number}.conf",
                "owner": "root:root",
                "permissions": "0640",
                "content": lines,
            }
            for number in range(6)
        ],
        "preKubeadmCommands": ["sysctl -w net.ipv4.ip_forward=1", "modprobe br_netfilter"],
        "postKubeadmCommands": ["systemctl restart capelin-node"],
        "users": [
            {
                "name": "capi",
                "sshAuthorizedKeys": ["ssh-ed25519 " + "A" * 68],
                "sudo": "ALL=(ALL) NOPASSWD:ALL",
            }
        ],
        "ntp": {"enabled": True, "servers": ["0.pool.ntp.org", "1.pool.ntp.org"]},
        "mounts": [["LABEL=etcd", "/var/lib/etcd"]],
        "diskSetup": {
            "partitions": [
                {"device": "/dev/sdb", "layout": True, "overwrite": False, "tableType": "gpt"}
            ],
            "filesystems": [{"device": "/dev/sdb1", "filesystem": "ext4", "label": "data"}],
        },
    }
