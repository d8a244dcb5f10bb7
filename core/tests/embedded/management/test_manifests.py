"""Components turned into what a process needs."""

import base64
from typing import Any

import pytest
from capelin.embedded.management.manifests import (
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
    found = manifest("Deployment", spec={"template": {"spec": pod}})
    found["metadata"]["namespace"] = "capi-system"
    return found


def the(components: list[Manifest], listener: WebhookEndpoint | None = LISTENER) -> Manifest:
    (only,) = localize(components, provider="cluster-api", listener=listener)
    return only


def service(path: str) -> Manifest:
    return {"service": {"name": "capi-webhook-service", "namespace": "capi-system", "path": path}}


def test_pods_services_and_issued_certificates_are_left_to_the_processes() -> None:
    components = [
        manifest(kind)
        for kind in ("Service", "Deployment", "Certificate", "Issuer", "ClusterRole", "Role")
    ]
    kept = localize(components, provider="cluster-api", listener=LISTENER)
    assert [each["kind"] for each in kept] == ["ClusterRole", "Role"]


def test_webhooks_call_the_process_with_our_ca() -> None:
    configuration = manifest(
        "ValidatingWebhookConfiguration",
        webhooks=[{"name": "a", "clientConfig": {**service("/validate"), "caBundle": "Cg=="}}],
    )
    assert the([configuration])["webhooks"] == [
        {
            "name": "a",
            "clientConfig": {"url": "https://127.64.0.9:31000/validate", "caBundle": CA},
        }
    ]


def test_conversions_call_the_process_with_our_ca() -> None:
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
    assert the([crd])["spec"] == {
        "versions": [{"name": "v1"}],
        "conversion": {
            "strategy": "Webhook",
            "webhook": {
                "conversionReviewVersions": ["v1"],
                "clientConfig": {"url": "https://127.64.0.9:31000/convert", "caBundle": CA},
            },
        },
    }


def test_an_extension_is_called_at_its_process() -> None:
    extension = manifest(
        "ExtensionConfig",
        spec={"clientConfig": {"service": {"name": "s"}}, "settings": {"a": "b"}},
    )
    assert the([extension])["spec"] == {
        "clientConfig": {"url": "https://127.64.0.9:31000", "caBundle": CA},
        "settings": {"a": "b"},
    }


def test_a_crd_without_conversion_stays_as_it_is() -> None:
    crd = manifest("CustomResourceDefinition", spec={"versions": []})
    assert the([crd], listener=None)["spec"] == {"versions": []}


def test_a_webhook_that_nothing_serves_is_refused() -> None:
    configuration = manifest(
        "MutatingWebhookConfiguration", webhooks=[{"name": "a", "clientConfig": service("/")}]
    )
    with pytest.raises(ValueError, match="capi-webhook-service, but no process serves it"):
        the([configuration], listener=None)


def test_everything_carries_the_labels_that_clusterctl_looks_for() -> None:
    role = manifest("ClusterRole")
    role["metadata"]["labels"] = {"keep": "me"}
    role["metadata"]["annotations"] = {"cert-manager.io/inject-ca-from": "a/b", "also": "me"}
    assert the([role])["metadata"] == {
        "name": "x",
        "labels": {
            "keep": "me",
            "clusterctl.cluster.x-k8s.io": "",
            "cluster.x-k8s.io/provider": "cluster-api",
        },
        "annotations": {"also": "me"},
    }


def test_what_others_need_is_sent_first_and_webhooks_last() -> None:
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
    assert [each["kind"] for each in sent] == [
        "CustomResourceDefinition",
        "Namespace",
        "ServiceAccount",
        "RoleBinding",
        "ClusterRole",
        "MutatingWebhookConfiguration",
    ]


def test_the_components_given_are_left_untouched() -> None:
    configuration = manifest(
        "ValidatingWebhookConfiguration", webhooks=[{"name": "a", "clientConfig": service("/v")}]
    )
    before = repr(configuration)
    the([configuration])
    assert repr(configuration) == before


def test_a_deployment_says_how_its_manager_is_started() -> None:
    env = [
        {"name": "DOCKER_HOST", "value": "unix:///x"},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    found = launch_spec(
        [manifest("Service"), deployment(args=["--leader-elect", "--v=2"], env=env)]
    )
    assert found == LaunchSpec(
        namespace="capi-system",
        service_account="capi-manager",
        arguments=("--leader-elect", "--v=2"),
        environment={"DOCKER_HOST": "unix:///x"},
    )


def test_components_that_start_nothing_or_two_things_are_refused() -> None:
    with pytest.raises(ValueError, match="must have one Deployment, not 0"):
        launch_spec([manifest("Service")])
    two = deployment()
    two["spec"]["template"]["spec"]["containers"] *= 2
    with pytest.raises(ValueError, match="must have one container, not 2"):
        launch_spec([two])


def test_the_inventory_names_the_provider_as_clusterctl_does() -> None:
    entry = inventory_entry(
        name="kubeadm",
        kind="BootstrapProvider",
        label="bootstrap-kubeadm",
        version="v1.14.0",
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
        "v1.14.0",
    )
