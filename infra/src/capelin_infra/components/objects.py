"""Manifests as resources of pulumi-kubernetes."""

import json
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, Final

import pulumi
from capelin.api import Unstructured

from capelin_infra.resources import AdmissionCheck

PROPAGATION: Final = "pulumi.com/deletionPropagationPolicy"
WAIT_FOR: Final = "pulumi.com/waitFor"


class KubernetesObject(pulumi.CustomResource):
    """An object of any kind, with all that its manifest has.

    The typed classes of pulumi-kubernetes know its built-in kinds only, and of others the spec.
    """

    def __init__(
        self,
        resource_name: str,
        manifest: Unstructured,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        api_version: str = manifest["apiVersion"]
        group_version = api_version if "/" in api_version else f"core/{api_version}"
        # Like the package's own classes, it selects the plugin that serves the resource.
        plugin = pulumi.ResourceOptions(version=version("pulumi-kubernetes"))
        super().__init__(
            f"kubernetes:{group_version}:{manifest['kind']}",
            resource_name,
            {"status": None, **manifest},
            pulumi.ResourceOptions.merge(plugin, opts),
        )


def kubernetes_object(
    prefix: str,
    manifest: Unstructured,
    *,
    parent: pulumi.Resource,
    depends_on: Iterable[pulumi.Resource] = (),
    deleted_with: pulumi.Resource | None = None,
) -> KubernetesObject:
    """An object named after its kind and its own name, which nothing keeps from being deleted."""
    metadata: dict[str, Any] = dict(manifest["metadata"])
    # A deletion in the foreground waits for controllers that may be gone by then.
    metadata["annotations"] = {**metadata.get("annotations", {}), PROPAGATION: "background"}
    if manifest["kind"] == "CustomResourceDefinition":
        metadata["annotations"].setdefault(WAIT_FOR, "condition=Established")
    return KubernetesObject(
        f"{prefix}-{manifest['kind']}-{metadata['name']}".lower(),
        {**manifest, "metadata": metadata},
        pulumi.ResourceOptions(parent=parent, depends_on=[*depends_on], deleted_with=deleted_with),
    )


def admission_check(
    resource_name: str,
    kubeconfig: pulumi.Input[str],
    manifest: Unstructured,
    *,
    parent: pulumi.Resource,
    depends_on: Iterable[pulumi.Resource],
) -> AdmissionCheck:
    """Exists when the API server would accept an object."""
    return AdmissionCheck(
        resource_name,
        kubeconfig=kubeconfig,
        manifest=json.dumps(manifest, sort_keys=True),
        opts=pulumi.ResourceOptions(parent=parent, depends_on=[*depends_on]),
    )


def in_namespace(manifests: Sequence[Unstructured], namespace: str) -> list[Unstructured]:
    """The manifests of namespaced kinds, in a namespace where they name none."""
    return [
        {**manifest, "metadata": {"namespace": namespace, **manifest["metadata"]}}
        for manifest in manifests
    ]
