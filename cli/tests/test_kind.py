"""Configuration of kind and containerd for a kind cluster."""

import tomllib

from capelin_cli.kind import KindConfig, KindMount, KindNode, KindPort, cluster_config, hosts_file


def test_nodes_and_their_containerd_are_configured() -> None:
    node = KindNode(
        mounts=[KindMount(host_path="/here", container_path="/there", read_only=True)],
        ports=[KindPort(container_port=80, host_port=8080)],
    )
    inputs = KindConfig(
        name="dev",
        image="node:v1",
        nodes=[node],
        feature_gates={"A": True},
        pod_subnet="10.1.0.0/16",
    )
    config = cluster_config(inputs)
    (patch,) = config["containerdConfigPatches"]
    assert tomllib.loads(patch)["plugins"]["io.containerd.grpc.v1.cri"]["registry"] == {
        "config_path": "/etc/containerd/certs.d"
    }
    assert (config["name"], config["featureGates"]) == ("dev", {"A": True})
    assert config["networking"] == {"podSubnet": "10.1.0.0/16"}
    (described,) = config["nodes"]
    assert (described["role"], described["image"]) == ("control-plane", "node:v1")
    (mount,), (port,) = described["extraMounts"], described["extraPortMappings"]
    assert mount == {"hostPath": "/here", "containerPath": "/there", "readOnly": True}
    assert (port["containerPort"], port["hostPort"]) == (80, 8080)


def test_a_cluster_without_nodes_has_one() -> None:
    assert [node["role"] for node in cluster_config(KindConfig(name="dev"))["nodes"]] == [
        "control-plane"
    ]


def test_containerd_uses_a_mirror_before_the_registry() -> None:
    hosts = tomllib.loads(hosts_file("docker.io", "http://127.0.0.1:5000"))
    assert hosts == {
        "server": "https://docker.io",
        "host": {"http://127.0.0.1:5000": {"capabilities": ["pull", "resolve"]}},
    }
