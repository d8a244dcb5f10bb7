"""The components that install a provider, or a Runtime Extension, in pods."""

import pulumi

from capelin_infra.pulumi.components.manifests import Manifests, ManifestsArgs, waiting_for


class Provider(Manifests):
    """Kinds, roles that core's are aggregated from, a service account, an available Deployment."""

    def __init__(
        self,
        resource_name: str,
        args: ManifestsArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        component_type = "capelin:components:Provider"
        super().__init__(resource_name, args, opts, component_type=component_type)


class RuntimeExtension(Manifests):
    """A certificate, a service, available pods; then an ExtensionConfig that is discovered."""

    def __init__(
        self,
        resource_name: str,
        args: ManifestsArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        manifests = [
            waiting_for(each, "Discovered") if each["kind"] == "ExtensionConfig" else each
            for each in args.manifests
        ]
        super().__init__(
            resource_name,
            ManifestsArgs(manifests, args.deleted_with, args.after),
            opts,
            component_type="capelin:components:RuntimeExtension",
        )
