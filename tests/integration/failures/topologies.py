"""Clusters whose ClusterClass, extensions or lifecycle policies hold them."""

from typing import Any

from capelin.api import Unstructured
from capelin.api.capi import Cluster, ClusterClass
from capelin_cli.clusters.topology import DEMO_CLASS

from tests.integration.lifecycle_stories import AFTER, Stories

from .scene import TEMPLATE_CREATOR, Scene, failure

EXTENSION_ADMIN = "the administrator of the extension"
CREATE, DELETE = "BeforeClusterCreate", "BeforeClusterDelete"


async def with_policy(scene: Scene, hook: str, action: dict[str, Any], **spec: Any) -> Stories:
    """A ClusterClass, and a policy with the name `gate`."""
    stories = Stories(scene.client, scene.name)
    await stories.create_class()
    await stories.apply("gate", hook, action, **spec)
    await stories.are_called(hook)
    return stories


@failure("AwaitsApproval", "LifecyclePolicy gate", "an approver")
async def creation_without_approval(scene: Scene) -> None:
    stories = await with_policy(scene, CREATE, {"approval": {"approvers": ["alice"]}})
    await stories.create(scene.name)


@failure("AwaitsApproval", "LifecyclePolicy gate", "an approver")
async def deletion_without_approval(scene: Scene) -> None:
    stories = await with_policy(scene, DELETE, {"approval": {"approvers": ["alice"]}})
    await stories.create(scene.name)
    await stories.is_admitted(scene.name)
    await scene.client.delete(Cluster, scene.name, scene.name)


@failure("PolicyBlocks", "LifecyclePolicy gate", "the owner of policy gate")
async def full_lifecycle_quota(scene: Scene) -> None:
    quota = {"groupBy": "Namespace", "limits": [{"resource": "clusters", "limit": 0}]}
    stories = await with_policy(scene, CREATE, {"quota": quota})
    await stories.create(scene.name)


@failure("PolicyBlocks", "LifecyclePolicy gate", "the owner of policy gate")
async def broken_rule(scene: Scene) -> None:
    rule = {"expression": "false", "message": "no clusters today"}
    stories = await with_policy(scene, CREATE, {"validate": {"rules": [rule]}})
    await stories.create(scene.name)


def topology(scene: Scene, cluster_class: str) -> Unstructured:
    return {
        "apiVersion": Cluster.resource.api_version,
        "kind": "Cluster",
        "metadata": {"name": scene.name, "namespace": scene.name},
        "spec": {"topology": {"classRef": {"name": cluster_class}, "version": AFTER}},
    }


async def change_class(scene: Scene, spec: dict[str, Any]) -> None:
    await scene.client.patch(ClusterClass, DEMO_CLASS, scene.name, {"spec": spec})


@failure("TemplateMissing", "CapelinControlPlaneTemplate absent", TEMPLATE_CREATOR)
async def class_without_template(scene: Scene) -> None:
    stories = Stories(scene.client, scene.name)
    await stories.create_class()
    template = {
        "apiVersion": "controlplane.cluster.x-k8s.io/v1alpha1",
        "kind": "CapelinControlPlaneTemplate",
        "name": "absent",
    }
    await stories.create(scene.name)
    await change_class(scene, {"controlPlane": {"templateRef": template}})


@failure("ExtensionFails", "ExtensionConfig absent", EXTENSION_ADMIN)
async def patch_of_an_absent_extension(scene: Scene) -> None:
    stories = Stories(scene.client, scene.name)
    external = {"generatePatchesExtension": "generate.absent"}
    await stories.create_class({"name": "external", "external": external})
    await stories.create_from(topology(scene, DEMO_CLASS))


@failure("TopologyFails", "Cluster {name}", "you")
async def patch_that_does_not_fit(scene: Scene) -> None:
    stories = Stories(scene.client, scene.name)
    patch = {"op": "replace", "path": "/spec/template/spec/absent/field", "value": 1}
    await stories.create_class(
        {
            "name": "broken",
            "definitions": [
                {
                    "selector": {
                        "apiVersion": "controlplane.cluster.x-k8s.io/v1alpha1",
                        "kind": "CapelinControlPlaneTemplate",
                        "matchResources": {"controlPlane": True},
                    },
                    "jsonPatches": [patch],
                }
            ],
        }
    )
    await stories.create_from(topology(scene, DEMO_CLASS))
