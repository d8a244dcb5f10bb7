"""A Runtime Extension that gives the machines of a ClusterClass an HTTP proxy."""

from shlex import quote

from capelin.api import Model
from capelin.runtime import Extension
from capelin.runtime.server import serve
from capelin.runtime.topology import Mutations, Template, control_plane, machine_deployments
from capelin.runtime.v1alpha1 import DiscoverVariables, GeneratePatches


class Variables(Model):
    """The variables that Clusters of the ClusterClass can set."""

    proxy: str | None = None


ext = Extension("proxy")
mutations = Mutations(Variables)
ext.handler(DiscoverVariables, name="variables-v1")(mutations.described)
ext.handler(GeneratePatches, name="patches-v1")(mutations.patches)


@mutations.on("KubeadmConfigTemplate", machine_deployments())
@mutations.on("KubeadmControlPlaneTemplate", control_plane)
def use_the_proxy(template: Template[Variables]) -> None:
    """Set the proxy before kubeadm runs."""
    above = ["kubeadmConfigSpec"] if template.kind == "KubeadmControlPlaneTemplate" else []
    if template.variables.proxy:
        commands = template.sequence(*above, "preKubeadmCommands")
        commands.append(f"export HTTPS_PROXY={quote(template.variables.proxy)}")


if __name__ == "__main__":
    serve(ext)
