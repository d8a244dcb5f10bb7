"""What we keep in a workload cluster is what the real kubeadm would put there."""

import asyncio
import copy
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from capelin.api import Unstructured
from capelin.embedded.binaries import KNOWN_KUBERNETES, Binaries
from capelin_control_plane.workload import Addon, Facts, addons, join_objects, service_objects
from capelin_control_plane.workload.addons import coredns_image


def facts(version: str = "v1.34.4") -> Facts:
    return Facts(
        cluster_name="demo",
        version=version,
        host="127.64.0.5",
        port=6443,
        ca_pem=b"-----BEGIN CERTIFICATE-----\n",
        service_cidrs=("10.96.0.0/12",),
        pod_cidrs=("192.168.0.0/16",),
        service_domain="cluster.local",
        encryption_algorithm="ECDSA-P256",
        coredns=Addon(),
        kube_proxy=Addon(),
    )


def by_name(objects: list[Unstructured]) -> dict[tuple[str, str], Unstructured]:
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def said(value: Any) -> Any:
    """A value without what says nothing: kubeadm writes out fields that nobody has set."""
    if isinstance(value, dict):
        mapping = cast("Mapping[str, Any]", value)
        kept = {key: said(one) for key, one in mapping.items()}
        empty: tuple[Any, ...] = (None, {}, [], "", 0, "0s", "rbac.authorization.k8s.io")
        return {key: one for key, one in kept.items() if one not in empty}
    if isinstance(value, list):
        return [said(one) for one in cast("list[Any]", value)]
    return value


def without_names(manifest: Unstructured) -> Unstructured:
    """A manifest whose probes say a port's number: later versions of kubeadm give ports names."""
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


@pytest.mark.parametrize("version", KNOWN_KUBERNETES)
@pytest.mark.parametrize("addon", ["coredns", "kube-proxy"])
async def test_add_ons_are_those_of_kubeadm(version: str, addon: str, tmp_path: Path) -> None:
    theirs = by_name(await kubeadm_addon(version, tmp_path, addon, "--print-manifest"))
    ours = by_name(addons(facts(version)))
    for key, manifest in theirs.items():
        expected, found = said(without_names(manifest)), said(without_names(ours[key]))
        # An update by kubeadm needs it; server-side apply does without.
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
    return said(yaml.safe_load(text))


def test_an_add_on_that_is_not_wanted_is_not_there() -> None:
    wanted = facts()
    without = replace(wanted, coredns=None)
    assert ("Deployment", "coredns") in by_name(addons(wanted))
    assert ("Deployment", "coredns") not in by_name(addons(without))


def test_discovery_tells_where_the_api_is_and_whom_to_trust() -> None:
    info = by_name(join_objects(facts()))["ConfigMap", "cluster-info"]
    kubeconfig = yaml.safe_load(info["data"]["kubeconfig"])
    cluster = kubeconfig["clusters"][0]["cluster"]
    assert cluster["server"] == "https://127.64.0.5:6443"
    assert info["metadata"]["namespace"] == "kube-public"


def test_the_kubelet_is_told_the_tenth_service_address_for_dns() -> None:
    configuration = by_name(join_objects(facts()))["ConfigMap", "kubelet-config"]
    kubelet = yaml.safe_load(configuration["data"]["kubelet"])
    assert kubelet["clusterDNS"] == ["10.96.0.10"]


def test_a_version_from_the_future_gets_the_newest_known_dns() -> None:
    assert coredns_image("v1.99.0") == coredns_image("v1.36.0")


def test_an_ipv6_endpoint_is_in_brackets() -> None:
    assert replace(facts(), host="fd00::1").server == "https://[fd00::1]:6443"


def test_pods_find_the_api_where_it_answers_others_than_this_machine() -> None:
    (one,) = service_objects(replace(facts(), host="192.0.2.7", port=443))
    assert one["metadata"]["labels"] == {"kubernetes.io/service-name": "kubernetes"}
    assert one["endpoints"][0]["addresses"] == ["192.0.2.7"]
    assert one["ports"] == [{"name": "https", "port": 443, "protocol": "TCP"}]
    assert service_objects(replace(facts(), host="fd00::1"))[0]["addressType"] == "IPv6"


@pytest.mark.parametrize("host", ["127.64.0.5", "api.example.com"])
def test_an_endpoint_that_kubernetes_would_refuse_is_left_out(host: str) -> None:
    assert service_objects(replace(facts(), host=host)) == []
