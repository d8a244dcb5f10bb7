"""What `kubeadm join` and the kubeadm bootstrap provider look for in a workload cluster."""

import base64

from capelin.api import Unstructured

from capelin_control_plane.workload.facts import Facts
from capelin_control_plane.workload.manifests import (
    BOOTSTRAPPERS,
    NODES,
    cluster_role,
    cluster_role_binding,
    config_map,
    group,
    may_read_config_map,
    text,
    user,
)

_CSRS = "system:certificates.k8s.io:certificatesigningrequests"
# Paths on the machine that joins, not on this one.
_NODE_CA = "/etc/kubernetes/pki/ca.crt"
_NODE_PKI = "/etc/kubernetes/pki"


def join_objects(facts: Facts) -> list[Unstructured]:
    """Everything that a machine needs to find, trust and join the control plane."""
    return [
        config_map("cluster-info", "kube-public", {"kubeconfig": _discovery_kubeconfig(facts)}),
        *may_read_config_map(
            "kubeadm:bootstrap-signer-clusterinfo",
            "cluster-info",
            "kube-public",
            # A machine that joins does not trust the cluster yet: it checks the signature instead.
            [user("system:anonymous")],
        ),
        config_map(
            "kubeadm-config", "kube-system", {"ClusterConfiguration": _cluster_configuration(facts)}
        ),
        *may_read_config_map(
            "kubeadm:nodes-kubeadm-config",
            "kubeadm-config",
            "kube-system",
            [group(BOOTSTRAPPERS), group(NODES)],
        ),
        config_map("kubelet-config", "kube-system", {"kubelet": _kubelet_configuration(facts)}),
        *may_read_config_map(
            "kubeadm:kubelet-config",
            "kubelet-config",
            "kube-system",
            [group(NODES), group(BOOTSTRAPPERS)],
        ),
        cluster_role(
            "kubeadm:get-nodes", {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
        ),
        cluster_role_binding("kubeadm:get-nodes", "kubeadm:get-nodes", group(BOOTSTRAPPERS)),
        cluster_role_binding(
            "kubeadm:kubelet-bootstrap", "system:node-bootstrapper", group(BOOTSTRAPPERS)
        ),
        cluster_role_binding(
            "kubeadm:node-autoapprove-bootstrap", f"{_CSRS}:nodeclient", group(BOOTSTRAPPERS)
        ),
        cluster_role_binding(
            "kubeadm:node-autoapprove-certificate-rotation", f"{_CSRS}:selfnodeclient", group(NODES)
        ),
    ]


def _discovery_kubeconfig(facts: Facts) -> str:
    authority = base64.b64encode(facts.ca_pem).decode()
    cluster = {"certificate-authority-data": authority, "server": facts.server}
    return text(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "", "cluster": cluster}],
            "contexts": None,
            "current-context": "",
            "users": None,
        }
    )


def _cluster_configuration(facts: Facts) -> str:
    networking = {"dnsDomain": facts.service_domain, "serviceSubnet": ",".join(facts.service_cidrs)}
    if facts.pod_cidrs:
        networking["podSubnet"] = ",".join(facts.pod_cidrs)
    return text(
        {
            "apiVersion": "kubeadm.k8s.io/v1beta4",
            "kind": "ClusterConfiguration",
            "apiServer": {},
            "caCertificateValidityPeriod": "87600h0m0s",
            "certificateValidityPeriod": "8760h0m0s",
            "certificatesDir": _NODE_PKI,
            "clusterName": facts.cluster_name,
            "controlPlaneEndpoint": facts.server.removeprefix("https://"),
            "controllerManager": {},
            "dns": {} if facts.coredns else {"disabled": True},
            "encryptionAlgorithm": facts.encryption_algorithm,
            "etcd": {"local": {"dataDir": "/var/lib/etcd"}},
            "imageRepository": "registry.k8s.io",
            "kubernetesVersion": facts.version,
            "networking": networking,
            "proxy": {} if facts.kube_proxy else {"disabled": True},
            "scheduler": {},
        }
    )


def _kubelet_configuration(facts: Facts) -> str:
    return text(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": _NODE_CA},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "systemd",
            "clusterDNS": list(facts.dns_addresses),
            "clusterDomain": facts.service_domain,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": 10248,
            "rotateCertificates": True,
            "staticPodPath": "/etc/kubernetes/manifests",
        }
    )
