"""Conversion of manifests for managers that run as processes."""

import base64
from typing import Any

import pytest
from capelin_embedded.management.manifests import (
    LaunchSpec,
    WebhookEndpoint,
    inventory_entry,
    launch_spec,
    localize,
)

LISTENER = WebhookEndpoint("127.64.0.9", 31000, b"our CA")
CA = base64.b64encode(b"our CA").decode()

Manifest = dict[str, Any]


def manifest(kind: str, name: str = "x", **rest: Any) -> Manifest:
    return {"apiVersion": "any/v1", "kind": kind, "metadata": {"name": name}, **rest}


def deployment(**container: Any) -> Manifest:
    pod = {"serviceAccountName": "capi-manager", "containers": [{"name": "manager", **container}]}
    deployed = manifest("Deployment", spec={"template": {"spec": pod}})
    deployed["metadata"]["namespace"] = "capi-system"
    return deployed


def localized(components: list[Manifest], listener: WebhookEndpoint | None = LISTENER) -> Manifest:
    (only,) = localize(components, provider="cluster-api", listener=listener)
    return only


def service(path: str) -> Manifest:
    return {"service": {"name": "capi-webhook-service", "namespace": "capi-system", "path": path}}


def test_localize_drops_pods_services_and_certificates() -> None:
    components = [
        manifest(kind)
        for kind in ("Service", "Deployment", "Certificate", "Issuer", "ClusterRole", "Role")
    ]
    kept = localize(components, provider="cluster-api", listener=LISTENER)
    assert [component["kind"] for component in kept] == ["ClusterRole", "Role"]


def test_webhooks_use_the_url_of_the_process_and_our_ca() -> None:
    configuration = manifest(
        "ValidatingWebhookConfiguration",
        webhooks=[{"name": "a", "clientConfig": {**service("/validate"), "caBundle": "Cg=="}}],
    )
    assert localized([configuration])["webhooks"] == [
        {
            "name": "a",
            "clientConfig": {"url": "https://127.64.0.9:31000/validate", "caBundle": CA},
        }
    ]


def test_conversions_use_the_url_of_the_process_and_our_ca() -> None:
    crd = manifest(
        "CustomResourceDefinition",
        spec={
            "versions": [{"name": "v1"}],
            "conversion": {
                "strategy": "Webhook",
                "webhook": {
                    "conversionReviewVersions": ["v1"],
                    "clientConfig": service("/convert"),
                },
            },
        },
    )
    assert localized([crd])["spec"] == {
        "versions": [{"name": "v1"}],
        "conversion": {
            "strategy": "Webhook",
            "webhook": {
                "conversionReviewVersions": ["v1"],
                "clientConfig": {"url": "https://127.64.0.9:31000/convert", "caBundle": CA},
            },
        },
    }


def test_an_extension_config_uses_the_url_of_the_process() -> None:
    extension = manifest(
        "ExtensionConfig",
        spec={"clientConfig": {"service": {"name": "s"}}, "settings": {"a": "b"}},
    )
    assert localized([extension])["spec"] == {
        "clientConfig": {"url": "https://127.64.0.9:31000", "caBundle": CA},
        "settings": {"a": "b"},
    }


def test_a_crd_without_conversion_is_unchanged() -> None:
    crd = manifest("CustomResourceDefinition", spec={"versions": []})
    assert localized([crd], listener=None)["spec"] == {"versions": []}


def test_localize_rejects_a_webhook_without_a_process() -> None:
    configuration = manifest(
        "MutatingWebhookConfiguration", webhooks=[{"name": "a", "clientConfig": service("/")}]
    )
    with pytest.raises(ValueError, match="capi-webhook-service, but no process serves it"):
        localized([configuration], listener=None)


def test_localize_adds_the_labels_of_clusterctl() -> None:
    role = manifest("ClusterRole")
    role["metadata"]["labels"] = {"keep": "me"}
    role["metadata"]["annotations"] = {"cert-manager.io/inject-ca-from": "a/b", "also": "me"}
    assert localized([role])["metadata"] == {
        "name": "x",
        "labels": {
            "keep": "me",
            "clusterctl.cluster.x-k8s.io": "",
            "cluster.x-k8s.io/provider": "cluster-api",
        },
        "annotations": {"also": "me"},
    }


def test_localize_sorts_crds_first_and_webhooks_last() -> None:
    kinds = [
        "MutatingWebhookConfiguration",
        "RoleBinding",
        "ServiceAccount",
        "ClusterRole",
        "Namespace",
        "CustomResourceDefinition",
    ]
    components = [manifest(kind, webhooks=[]) for kind in kinds]
    sent = localize(components, provider="p", listener=LISTENER)
    assert [component["kind"] for component in sent] == [
        "CustomResourceDefinition",
        "Namespace",
        "ServiceAccount",
        "RoleBinding",
        "ClusterRole",
        "MutatingWebhookConfiguration",
    ]


def test_localize_does_not_change_its_input() -> None:
    configuration = manifest(
        "ValidatingWebhookConfiguration", webhooks=[{"name": "a", "clientConfig": service("/v")}]
    )
    before = repr(configuration)
    localized([configuration])
    assert repr(configuration) == before


def test_launch_spec_reads_a_deployment() -> None:
    env = [
        {"name": "DOCKER_HOST", "value": "unix:///x"},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    launch = launch_spec(
        [manifest("Service"), deployment(args=["--leader-elect", "--v=2"], env=env)]
    )
    assert launch == LaunchSpec(
        namespace="capi-system",
        service_account="capi-manager",
        arguments=("--leader-elect", "--v=2"),
        environment={"DOCKER_HOST": "unix:///x"},
    )


def test_launch_spec_needs_one_deployment_with_one_container() -> None:
    with pytest.raises(ValueError, match="must have one Deployment, not 0"):
        launch_spec([manifest("Service")])
    two = deployment()
    two["spec"]["template"]["spec"]["containers"] *= 2
    with pytest.raises(ValueError, match="must have one container, not 2"):
        launch_spec([two])


def test_an_inventory_entry_matches_that_of_clusterctl() -> None:
    entry = inventory_entry(
        name="kubeadm",
        kind="BootstrapProvider",
        label="bootstrap-kubeadm",
        version="v1.14.2",
        namespace="capi-kubeadm-bootstrap-system",
    )
    assert entry["metadata"] == {
        "name": "bootstrap-kubeadm",
        "namespace": "capi-kubeadm-bootstrap-system",
        "labels": {
            "clusterctl.cluster.x-k8s.io": "",
            "clusterctl.cluster.x-k8s.io/core": "inventory",
            "cluster.x-k8s.io/provider": "bootstrap-kubeadm",
        },
    }
    assert (entry["providerName"], entry["type"], entry["version"]) == (
        "kubeadm",
        "BootstrapProvider",
        "v1.14.2",
    )
