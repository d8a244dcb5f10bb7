"""Clusters whose controllers may not create an object."""

from capelin.api import Resource, Unstructured
from capelin.testing.waiting import until

from .scene import WITHIN, Scene, failure, silent_webhook

_QUOTAS = Resource("", "v1", "ResourceQuota", "resourcequotas")
NAMESPACE_ADMIN = "the administrator of the namespace"


async def limit(scene: Scene, resource: str) -> None:
    """Permit no more objects of a resource."""
    quota: Unstructured = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small", "namespace": scene.name},
        "spec": {"hard": {f"count/{resource}": "0"}},
    }
    await scene.apply(quota)

    async def is_enforced() -> bool:
        found = await scene.client.get(_QUOTAS, "small", scene.name)
        return bool(found.get("status", {}).get("hard"))

    # The quota controller must count the objects first.
    await until(is_enforced, within=WITHIN)


@failure("QuotaExceeded", "ResourceQuota small", NAMESPACE_ADMIN)
async def exceeded_quota(scene: Scene) -> None:
    await scene.ready()
    await limit(scene, "machines.cluster.x-k8s.io")
    await scene.add(scene.workers())


@failure(
    "Denied", "ValidatingAdmissionPolicy no-machines-{name}", "the author of the rejected field"
)
async def denying_policy(scene: Scene) -> None:
    await scene.ready()
    name = f"no-machines-{scene.name}"
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scene.name}}}
    rule = {
        "apiGroups": ["cluster.x-k8s.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": ["machines"],
    }
    await scene.apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {**here, "resourceRules": [rule]},
                "validations": [{"expression": "false", "message": "no machines here"}],
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    )
    await scene.add(scene.workers())


@failure("WebhookFails", "Webhook machines.example.com", "the administrator of the webhook")
async def silent_webhook_of_machines(scene: Scene) -> None:
    await scene.ready()
    webhook = silent_webhook("machines", "cluster.x-k8s.io", "machines")
    here = {"matchLabels": {"kubernetes.io/metadata.name": scene.name}}
    webhook["webhooks"][0]["namespaceSelector"] = here
    await scene.apply(webhook)
    await scene.add(scene.workers())


@failure("QuotaExceeded", "ResourceQuota small", NAMESPACE_ADMIN)
async def exceeded_quota_of_infrastructure(scene: Scene) -> None:
    await scene.ready()
    await limit(scene, "capelinmachines.infrastructure.cluster.x-k8s.io")
    await scene.add(scene.workers())


@failure("QuotaExceeded", "ResourceQuota small", NAMESPACE_ADMIN)
async def exceeded_quota_of_authorities(scene: Scene) -> None:
    await limit(scene, "secrets")
    await scene.create()
