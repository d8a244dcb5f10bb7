"""CoreDNS and kube-proxy, as kubeadm installs them."""

from typing import Any

from capelin.api import Unstructured

from capelin_control_plane.workload.facts import Addon, Facts
from capelin_control_plane.workload.manifests import (
    BOOTSTRAPPERS,
    account,
    cluster_role,
    cluster_role_binding,
    config_map,
    group,
    may_read_config_map,
    service_account,
    text,
)

COREDNS_IMAGES = {
    "1.31": "registry.k8s.io/coredns/coredns:v1.11.3",
    "1.32": "registry.k8s.io/coredns/coredns:v1.11.3",
    "1.33": "registry.k8s.io/coredns/coredns:v1.12.0",
    "1.34": "registry.k8s.io/coredns/coredns:v1.12.1",
    "1.35": "registry.k8s.io/coredns/coredns:v1.13.1",
    "1.36": "registry.k8s.io/coredns/coredns:v1.14.2",
}
"""The CoreDNS that each Kubernetes minor version was released with."""

_COREFILE = """\
.:53 {{
    errors
    health {{
       lameduck 5s
    }}
    ready
    kubernetes {domain} in-addr.arpa ip6.arpa {{
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }}
    prometheus :9153
    forward . /etc/resolv.conf {{
       max_concurrent 1000
    }}
    cache 30 {{
       disable success {domain}
       disable denial {domain}
    }}
    loop
    reload
    loadbalance
}}
"""


def addons(facts: Facts) -> list[Unstructured]:
    """The add-ons that are wanted."""
    wanted: list[Unstructured] = []
    if facts.coredns:
        wanted += _coredns(facts, facts.coredns)
    if facts.kube_proxy:
        wanted += _kube_proxy(facts, facts.kube_proxy)
    return wanted


def coredns_image(version: str) -> str:
    """The CoreDNS for a Kubernetes version: its own minor's, else the newest known."""
    minor = ".".join(version.removeprefix("v").split(".")[:2])
    return COREDNS_IMAGES.get(minor, list(COREDNS_IMAGES.values())[-1])


def _coredns(facts: Facts, addon: Addon) -> list[Unstructured]:
    reads = [
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"]},
    ]
    return [
        service_account("coredns"),
        cluster_role("system:coredns", *({**read, "verbs": ["list", "watch"]} for read in reads)),
        cluster_role_binding("system:coredns", "system:coredns", account("coredns")),
        config_map(
            "coredns", "kube-system", {"Corefile": _COREFILE.format(domain=facts.service_domain)}
        ),
        _coredns_service(facts),
        _coredns_deployment(addon.image or coredns_image(facts.version)),
    ]


def _coredns_service(facts: Facts) -> Unstructured:
    ports = [("dns", 53, "UDP"), ("dns-tcp", 53, "TCP"), ("metrics", 9153, "TCP")]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "kube-dns",
            "namespace": "kube-system",
            "labels": {
                "k8s-app": "kube-dns",
                "kubernetes.io/cluster-service": "true",
                "kubernetes.io/name": "CoreDNS",
            },
            "annotations": {"prometheus.io/port": "9153", "prometheus.io/scrape": "true"},
        },
        "spec": {
            "clusterIP": facts.dns_addresses[0],
            "ports": [
                {"name": name, "port": port, "protocol": protocol, "targetPort": port}
                for name, port, protocol in ports
            ],
            "selector": {"k8s-app": "kube-dns"},
        },
    }


def _coredns_deployment(image: str) -> Unstructured:
    labels = {"k8s-app": "kube-dns"}
    anywhere_else: dict[str, Any] = {
        "weight": 100,
        "podAffinityTerm": {
            "labelSelector": {
                "matchExpressions": [{"key": "k8s-app", "operator": "In", "values": ["kube-dns"]}]
            },
            "topologyKey": "kubernetes.io/hostname",
        },
    }
    corefile: dict[str, Any] = {
        "name": "config-volume",
        "configMap": {"name": "coredns", "items": [{"key": "Corefile", "path": "Corefile"}]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "coredns", "namespace": "kube-system", "labels": labels},
        "spec": {
            "replicas": 2,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "priorityClassName": "system-cluster-critical",
                    "serviceAccountName": "coredns",
                    "affinity": {
                        "podAntiAffinity": {
                            "preferredDuringSchedulingIgnoredDuringExecution": [anywhere_else]
                        }
                    },
                    "tolerations": [
                        {"key": "CriticalAddonsOnly", "operator": "Exists"},
                        {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
                    ],
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "containers": [_coredns_container(image)],
                    "dnsPolicy": "Default",
                    "volumes": [corefile],
                },
            },
        },
    }


def _coredns_container(image: str) -> dict[str, Any]:
    ports = [
        ("dns", 53, "UDP"),
        ("dns-tcp", 53, "TCP"),
        ("metrics", 9153, "TCP"),
        ("liveness-probe", 8080, "TCP"),
        ("readiness-probe", 8181, "TCP"),
    ]
    return {
        "name": "coredns",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "resources": {
            "limits": {"memory": "170Mi"},
            "requests": {"cpu": "100m", "memory": "70Mi"},
        },
        "args": ["-conf", "/etc/coredns/Corefile"],
        "volumeMounts": [{"name": "config-volume", "mountPath": "/etc/coredns", "readOnly": True}],
        "ports": [
            {"containerPort": port, "name": name, "protocol": protocol}
            for name, port, protocol in ports
        ],
        "livenessProbe": {
            "httpGet": {"path": "/health", "port": "liveness-probe", "scheme": "HTTP"},
            "initialDelaySeconds": 60,
            "timeoutSeconds": 5,
            "successThreshold": 1,
            "failureThreshold": 5,
        },
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": "readiness-probe", "scheme": "HTTP"}
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }


def _kube_proxy(facts: Facts, addon: Addon) -> list[Unstructured]:
    settings = config_map(
        "kube-proxy",
        "kube-system",
        {
            "config.conf": _proxy_configuration(facts),
            "kubeconfig.conf": _proxy_kubeconfig(facts),
        },
    )
    settings["metadata"]["labels"] = {"app": "kube-proxy"}
    return [
        service_account("kube-proxy"),
        cluster_role_binding("kubeadm:node-proxier", "system:node-proxier", account("kube-proxy")),
        *may_read_config_map("kube-proxy", "kube-proxy", "kube-system", [group(BOOTSTRAPPERS)]),
        settings,
        _proxy_daemon_set(addon.image or f"registry.k8s.io/kube-proxy:{facts.version}"),
    ]


def _proxy_configuration(facts: Facts) -> str:
    return text(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "bindAddress": "0.0.0.0",  # noqa: S104  kube-proxy's own: it serves its node's ports
            "clientConnection": {"kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf"},
            "clusterCIDR": ",".join(facts.pod_cidrs),
        }
    )


def _proxy_kubeconfig(facts: Facts) -> str:
    credentials = "/var/run/secrets/kubernetes.io/serviceaccount"
    cluster = {"certificate-authority": f"{credentials}/ca.crt", "server": facts.server}
    context = {"cluster": "default", "namespace": "default", "user": "default"}
    return text(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "default", "cluster": cluster}],
            "contexts": [{"name": "default", "context": context}],
            "current-context": "default",
            "users": [{"name": "default", "user": {"tokenFile": f"{credentials}/token"}}],
        }
    )


def _proxy_daemon_set(image: str) -> Unstructured:
    labels = {"k8s-app": "kube-proxy"}
    lock = "/run/xtables.lock"
    container: dict[str, Any] = {
        "name": "kube-proxy",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": [
            "/usr/local/bin/kube-proxy",
            "--config=/var/lib/kube-proxy/config.conf",
            "--hostname-override=$(NODE_NAME)",
        ],
        "securityContext": {"privileged": True},
        "volumeMounts": [
            {"mountPath": "/var/lib/kube-proxy", "name": "kube-proxy"},
            {"mountPath": lock, "name": "xtables-lock", "readOnly": False},
            {"mountPath": "/lib/modules", "name": "lib-modules", "readOnly": True},
        ],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "kube-proxy", "namespace": "kube-system", "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "priorityClassName": "system-node-critical",
                    "containers": [container],
                    "hostNetwork": True,
                    "serviceAccountName": "kube-proxy",
                    "volumes": [
                        {"name": "kube-proxy", "configMap": {"name": "kube-proxy"}},
                        {
                            "name": "xtables-lock",
                            "hostPath": {"path": lock, "type": "FileOrCreate"},
                        },
                        {"name": "lib-modules", "hostPath": {"path": "/lib/modules"}},
                    ],
                    "tolerations": [{"operator": "Exists"}],
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                },
            },
        },
    }
