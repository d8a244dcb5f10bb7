"""The component that applies a ClusterClass and its templates."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
from capelin.api import Unstructured
from capelin_cli.clusters.demo import demo_manifests

from capelin_infra.components.objects import in_namespace, kubernetes_object


@dataclass(frozen=True, slots=True)
class ClusterClassArgs:
    """Arguments of a ClusterClass."""

    manifests: Sequence[Unstructured] | None = None
    """The ClusterClass and its templates. Default: the one of Capelin's own providers."""
    namespace: str = "default"
    """Namespace of the Clusters of the class."""
    deleted_with: pulumi.Resource | None = None
    """The resource whose deletion removes all of it."""
    after: Sequence[pulumi.Resource] = ()
    """Resources that must exist first."""


class ClusterClass(pulumi.ComponentResource):
    """A ClusterClass, created after the templates that it refers to."""

    name: pulumi.Output[str]
    """The name that a Cluster refers to, available once the class exists."""
    namespace: str

    def __init__(
        self,
        resource_name: str,
        args: ClusterClassArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("capelin:components:ClusterClass", resource_name, None, opts)
        manifests = demo_manifests() if args.manifests is None else args.manifests
        ours = in_namespace(manifests, args.namespace)
        classes = [manifest for manifest in ours if manifest["kind"] == "ClusterClass"]
        if len(classes) != 1:
            msg = f"the manifests need exactly one ClusterClass, and have {len(classes)}"
            raise ValueError(msg)
        templates = [
            kubernetes_object(
                resource_name,
                manifest,
                parent=self,
                depends_on=args.after,
                deleted_with=args.deleted_with,
            )
            for manifest in ours
            if manifest["kind"] != "ClusterClass"
        ]
        resource = kubernetes_object(
            resource_name,
            classes[0],
            parent=self,
            depends_on=templates,
            deleted_with=args.deleted_with,
        )
        self.namespace = args.namespace
        name: str = classes[0]["metadata"]["name"]
        self.name = resource.id.apply(lambda _: name)
        self.register_outputs({"name": self.name})
