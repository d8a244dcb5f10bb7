"""Pure: the configuration of a kind cluster, and of a registry mirror in its nodes."""

from typing import Any

from capelin_infra.plugin.types import KindClusterInputs, KindNode

MIRRORS = "/etc/containerd/certs.d"
"""Where containerd looks for a registry's mirrors each time it pulls."""


def cluster_config(inputs: KindClusterInputs) -> dict[str, Any]:
    """What `kind create cluster --config` takes."""
    config: dict[str, Any] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": inputs.name,
        "nodes": [_node(each, inputs.image) for each in inputs.nodes or [KindNode()]],
        "containerdConfigPatches": [
            f'[plugins."io.containerd.grpc.v1.cri".registry]\\nconfig_path = "{MIRRORS}"'
        ],
    }
    if inputs.feature_gates:
        config["featureGates"] = dict(inputs.feature_gates)
    if inputs.pod_subnet is not None:
        config["networking"] = {"podSubnet": inputs.pod_subnet}
    return config


def hosts_file(registry: str, mirror: str) -> str:
    """The file that has containerd pull a registry's images from a mirror."""
    return (
        f'server = "https://{registry}"\\n\\n[host."{mirror}"]\\n'
        '  capabilities = ["pull", "resolve"]\\n'
    )


def _node(node: KindNode, image: str | None) -> dict[str, Any]:
    return {
        "role": node.role,
        **({"image": image} if image else {}),
        **({"labels": dict(node.labels)} if node.labels else {}),
        "extraMounts": [
            {
                "hostPath": each.host_path,
                "containerPath": each.container_path,
                "readOnly": each.read_only,
            }
            for each in node.mounts
        ],
        "extraPortMappings": [
            {
                "containerPort": each.container_port,
                "hostPort": each.host_port,
                "listenAddress": each.listen_address,
                "protocol": each.protocol,
            }
            for each in node.ports
        ],
    }
