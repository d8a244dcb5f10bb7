"""The component that installs Capelin's Helm charts into a cluster with Cluster API."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes

from capelin_infra.components.hook_client import hook_client_config_map


@dataclass(frozen=True, slots=True)
class CapelinChartsArgs:
    """Arguments of Capelin's charts."""

    chart: str = "oci://ghcr.io/capelin/charts/capelin"
    """The chart `capelin`: in a registry, or a file or folder of this machine."""
    version: str | None = None
    """Version of the chart, such as `0.1.0`. Default: the newest one."""
    namespace: str = "capelin-system"
    """Namespace of the providers, which the component creates."""
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values of the chart, such as `{"components": {"lifecycle": True}}`."""
    hook_client_ca: pulumi.Input[str] | None = None
    """The CA of core's client certificate, for which the lifecycle extension waits."""


class CapelinCharts(pulumi.ComponentResource):
    """Capelin's providers in pods of your own cluster. Each of their objects is a resource."""

    def __init__(
        self,
        resource_name: str,
        args: CapelinChartsArgs | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("capelin:components:CapelinCharts", resource_name, None, opts)
        args = args or CapelinChartsArgs()
        namespace = kubernetes.core.v1.Namespace(
            f"{resource_name}-namespace",
            metadata={
                "name": args.namespace,
                "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
            },
            # Pulumi does not pass the dependencies of a component on to its children.
            opts=pulumi.ResourceOptions(parent=self, depends_on=opts.depends_on if opts else None),
        )
        before: list[pulumi.Resource] = [namespace]
        if args.hook_client_ca is not None:
            authority = hook_client_config_map(args.namespace, args.hook_client_ca)
            before.append(
                kubernetes.core.v1.ConfigMap(
                    f"{resource_name}-hook-client-ca",
                    metadata=authority["metadata"],
                    data=authority["data"],
                    opts=pulumi.ResourceOptions(parent=self, depends_on=[namespace]),
                )
            )
        kubernetes.helm.v4.Chart(
            resource_name,
            name="capelin",
            chart=args.chart,
            version=args.version,
            namespace=args.namespace,
            values=args.values,
            opts=pulumi.ResourceOptions(parent=self, depends_on=before),
        )
        self.register_outputs({})
