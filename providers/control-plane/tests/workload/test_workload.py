"""The provider applies the same objects to a workload cluster as the real kubeadm."""

import asyncio
import copy
import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from capelin.api import Unstructured
from capelin_control_plane.api import Addon, Addons, KubeProxyAddon
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import Endpoint
from capelin_control_plane.workload import coredns_image, workload_objects
from capelin_embedded.binaries import TESTED_KUBERNETES, Binaries

from ..factories import desired_control_plane  # noqa: TID252 - a folder without a name

ENDPOINT = Endpoint("127.64.0.5", "127.64.0.5", 6443)
CA = b"-----BEGIN CERTIFICATE-----\n"


def desired(version: str = "v1.34.4") -> ControlPlane:
    return replace(desired_control_plane(version), pod_cidrs=("192.168.0.0/16",), addons=Addons())


def objects(desired: ControlPlane, endpoint: Endpoint = ENDPOINT) -> dict[str, Unstructured]:
    return {
        f"{manifest['kind']}/{manifest['metadata']['name']}": manifest
        for manifest in workload_objects(desired, endpoint, CA)
    }


def without_empty(value: Any) -> Any:
    """A value without empty fields: kubeadm also writes fields that are not set."""
    if isinstance(value, dict):
        mapping = cast("Mapping[str, Any]", value)
        compact = {key: without_empty(one) for key, one in mapping.items()}
        empty: tuple[Any, ...] = (None, {}, [], "", 0, "0s", "rbac.authorization.k8s.io")
        return {key: one for key, one in compact.items() if one not in empty}
    if isinstance(value, list):
        return [without_empty(one) for one in cast("list[Any]", value)]
    return value


def without_names(manifest: Unstructured) -> Unstructured:
    """A manifest with port numbers in its probes: later versions of kubeadm name the ports."""
    numbered = copy.deepcopy(manifest)
    for container in numbered["spec"]["template"]["spec"]["containers"] if hosts(manifest) else ():
        numbers = {one["name"]: one["containerPort"] for one in container.get("ports", ())}
        for probe in ("livenessProbe", "readinessProbe"):
            if probe in container:
                check = container[probe]["httpGet"]
                check["port"] = numbers.get(check["port"], check["port"])
        container["ports"] = [
            one for one in container.get("ports", ()) if not one["name"].endswith("-probe")
        ]
    return numbered


def hosts(manifest: Unstructured) -> bool:
    return manifest["kind"] in {"Deployment", "DaemonSet"}


async def kubeadm_addon(version: str, folder: Path, *arguments: str) -> list[Unstructured]:
    program = await Binaries().path("kubeadm", version)
    configuration = folder / "kubeadm.yaml"
    configuration.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "kubeadm.k8s.io/v1beta4",
                "kind": "ClusterConfiguration",
                "kubernetesVersion": version,
                "controlPlaneEndpoint": "127.64.0.5:6443",
                "networking": {"podSubnet": "192.168.0.0/16"},
            }
        )
    )
    process = await asyncio.create_subprocess_exec(
        program,
        *("init", "phase", "addon", *arguments, f"--config={configuration}"),
        stdout=subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return [one for one in yaml.safe_load_all(output) if one]


@pytest.mark.needs_programs(*(f"kubeadm@{version}" for version in TESTED_KUBERNETES))
@pytest.mark.parametrize("version", TESTED_KUBERNETES)
@pytest.mark.parametrize("addon", ["coredns", "kube-proxy"])
async def test_add_ons_match_those_of_kubeadm(version: str, addon: str, tmp_path: Path) -> None:
    ours = objects(desired(version))
    for manifest in await kubeadm_addon(version, tmp_path, addon, "--print-manifest"):
        key = f"{manifest['kind']}/{manifest['metadata']['name']}"
        expected, found = (
            without_empty(without_names(manifest)),
            without_empty(without_names(ours[key])),
        )
        # An update by kubeadm needs it. Server-side apply does not.
        expected["metadata"].pop("resourceVersion", None)
        expected_data = expected.pop("data", {})
        found_data = found.pop("data", {})
        assert found == expected
        assert found_data.keys() == expected_data.keys()
        for name, text in expected_data.items():
            if name == "Corefile":
                assert found_data[name] == text
            else:
                assert meaning(found_data[name]).items() <= meaning(text).items()


def meaning(text: str) -> dict[str, Any]:
    return without_empty(yaml.safe_load(text))


def test_a_disabled_add_on_is_omitted() -> None:
    without = replace(desired(), addons=Addons(core_dns=Addon(enabled=False)))
    assert "Deployment/coredns" in objects(desired())
    assert "Deployment/coredns" not in objects(without)
    configuration = objects(without)["ConfigMap/kubeadm-config"]["data"]["ClusterConfiguration"]
    assert meaning(configuration)["dns"] == {"disabled": True}


def test_an_add_on_uses_the_image_in_the_spec() -> None:
    custom = replace(desired(), addons=Addons(kube_proxy=KubeProxyAddon(image="shoal/proxy:1")))
    template = objects(custom)["DaemonSet/kube-proxy"]["spec"]["template"]
    assert template["spec"]["containers"][0]["image"] == "shoal/proxy:1"


def test_kube_proxy_keeps_the_conntrack_limit_of_nodes_on_request() -> None:
    def config(addon: KubeProxyAddon) -> dict[str, Any]:
        custom = replace(desired(), addons=Addons(kube_proxy=addon))
        return yaml.safe_load(objects(custom)["ConfigMap/kube-proxy"]["data"]["config.conf"])

    assert "conntrack" not in config(KubeProxyAddon())
    assert config(KubeProxyAddon(conntrack_max_per_core=0))["conntrack"] == {"maxPerCore": 0}


def test_every_placeholder_is_replaced() -> None:
    assert "${" not in json.dumps(objects(desired()))


def test_a_value_that_looks_like_a_placeholder_is_unchanged() -> None:
    odd = replace(desired(), cluster="${server}")
    configuration = objects(odd)["ConfigMap/kubeadm-config"]["data"]["ClusterConfiguration"]
    assert yaml.safe_load(configuration)["clusterName"] == "${server}"


def test_cluster_info_contains_the_address_of_the_api_server() -> None:
    info = objects(desired())["ConfigMap/cluster-info"]
    kubeconfig = yaml.safe_load(info["data"]["kubeconfig"])
    cluster = kubeconfig["clusters"][0]["cluster"]
    assert cluster["server"] == "https://127.64.0.5:6443"
    assert info["metadata"]["namespace"] == "kube-public"


def test_the_kubelet_uses_the_tenth_service_address_for_dns() -> None:
    configuration = objects(desired())["ConfigMap/kubelet-config"]
    kubelet = yaml.safe_load(configuration["data"]["kubelet"])
    assert kubelet["clusterDNS"] == ["10.96.0.10"]


def test_a_newer_version_gets_the_newest_known_dns() -> None:
    assert coredns_image("v1.99.0") == coredns_image("v1.36.0")


def test_an_ipv6_endpoint_is_in_brackets() -> None:
    assert Endpoint("127.64.0.5", "fd00::1", 6443).url == "https://[fd00::1]:6443"


def test_pods_use_the_external_address_of_the_api_server() -> None:
    reachable = Endpoint("127.64.0.5", "192.0.2.7", 443)
    slice_ = objects(desired(), reachable)["EndpointSlice/kubernetes"]
    assert slice_["metadata"]["labels"] == {"kubernetes.io/service-name": "kubernetes"}
    assert slice_["endpoints"][0]["addresses"] == ["192.0.2.7"]
    assert slice_["ports"] == [{"name": "https", "port": 443, "protocol": "TCP"}]
    ipv6 = objects(desired(), Endpoint("127.64.0.5", "fd00::1", 443))
    assert ipv6["EndpointSlice/kubernetes"]["addressType"] == "IPv6"


@pytest.mark.parametrize("host", ["127.64.0.5", "api.example.com"])
def test_an_endpoint_that_kubernetes_would_reject_is_omitted(host: str) -> None:
    endpoint = Endpoint("127.64.0.5", host, 6443)
    assert "EndpointSlice/kubernetes" not in objects(desired(), endpoint)
