"""The component that applies a ClusterClass and its templates."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
from capelin.api import Unstructured
from capelin_cli.clusters.demo import demo_manifests
from pulumi_kubernetes.apiextensions import CustomResource

DependsOn = pulumi.Input[Sequence[pulumi.Input[pulumi.Resource]] | pulumi.Resource] | None


@dataclass(frozen=True, slots=True)
class ClusterClassArgs:
    """Arguments of a ClusterClass."""

    manifests: Sequence[Unstructured] | None = None
    """The ClusterClass and its templates. Default: the one of Capelin's own providers."""
    namespace: str = "default"
    """Namespace of the Clusters of the class."""


class ClusterClass(pulumi.ComponentResource):
    """A ClusterClass, created after the templates that it refers to."""

    name: pulumi.Output[str]
    """The name that a Cluster refers to, available once the class exists."""
    namespace: str

    def __init__(
        self,
        resource_name: str,
        args: ClusterClassArgs | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("capelin:components:ClusterClass", resource_name, None, opts)
        args = args or ClusterClassArgs()
        manifests = demo_manifests() if args.manifests is None else args.manifests
        classes = [manifest for manifest in manifests if manifest["kind"] == "ClusterClass"]
        if len(classes) != 1:
            msg = f"the manifests need exactly one ClusterClass, and have {len(classes)}"
            raise ValueError(msg)

        def applied(manifest: Unstructured, after: DependsOn) -> CustomResource:
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            return CustomResource(
                f"{resource_name}-{kind}-{name}".lower(),
                api_version=manifest["apiVersion"],
                kind=kind,
                metadata={"namespace": args.namespace, **manifest["metadata"]},
                spec=manifest["spec"],
                opts=pulumi.ResourceOptions(parent=self, depends_on=after),
            )

        # Pulumi does not pass the dependencies of a component on to its children.
        after = opts.depends_on if opts else None
        templates = [applied(it, after) for it in manifests if it["kind"] != "ClusterClass"]
        resource = applied(classes[0], templates)
        self.namespace = args.namespace
        name: str = classes[0]["metadata"]["name"]
        self.name = resource.id.apply(lambda _: name)
        self.register_outputs({"name": self.name})
