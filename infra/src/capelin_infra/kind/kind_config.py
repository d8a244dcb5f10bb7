"""Pure: the configuration of a kind cluster, and of a registry mirror in its nodes."""

from typing import Any

from capelin_infra.pulumi.plugin.types import KindClusterInputs, KindNode

MIRRORS = "/etc/containerd/certs.d"
"""Where containerd looks for a registry's mirrors each time it pulls."""


def cluster_config(inputs: KindClusterInputs) -> dict[str, Any]:
    """What `kind create cluster --config` takes."""
    config: dict[str, Any] = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": inputs.name,
        "nodes": [_node(node, inputs.image) for node in inputs.nodes or [KindNode()]],
        "containerdConfigPatches": [
            f'[plugins."io.containerd.grpc.v1.cri".registry]\nconfig_path = "{MIRRORS}"'
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
        f'server = "https://{registry}"\n\n[host."{mirror}"]\n'
        '  capabilities = ["pull", "resolve"]\n'
    )


def _node(node: KindNode, image: str | None) -> dict[str, Any]:
    return {
        "role": node.role,
        **({"image": image} if image else {}),
        **({"labels": dict(node.labels)} if node.labels else {}),
        "extraMounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "readOnly": mount.read_only,
            }
            for mount in node.mounts
        ],
        "extraPortMappings": [
            {
                "containerPort": port.container_port,
                "hostPort": port.host_port,
                "listenAddress": port.listen_address,
                "protocol": port.protocol,
            }
            for port in node.ports
        ],
    }
