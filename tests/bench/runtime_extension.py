"""Does to templates what Cluster API's reference extension does, for the two to be compared."""

from typing import Any

from capelin.api import Model
from capelin.runtime.extension import Call, Extension
from capelin.runtime.topology.mutations import Mutations
from capelin.runtime.topology.templates import Template
from capelin.runtime.v1alpha1 import (
    GeneratePatches,
    ValidateTopology,
)
from capelin.runtime.verdicts import Failure, Proceed, proceed

KUBEADM = "bootstrap.cluster.x-k8s.io/v1beta2"
KUBEADM_CONTROL_PLANE = "controlplane.cluster.x-k8s.io/v1beta2"
DEV = "infrastructure.cluster.x-k8s.io/v1beta2"


class File(Model):
    """A file to put on every machine."""

    path: str = ""
    content: str = ""
    content_format: str = ""


class Variables(Model):
    """What users of the ClusterClass can set."""

    image_repository: str | None = None
    kubeadm_control_plane_max_surge: str = ""
    files: list[File] = []
    pre_kubeadm_commands: list[str] = []
    kubeadm_config_template_annotations: dict[str, str] = {}


ext = Extension("reference")
mutations = Mutations(Variables, unknown_kinds="fail")
ext.handler(GeneratePatches, name="generate-patches")(mutations.patches)


def mark(metadata: dict[str, Any]) -> None:
    """Label and annotate, as a trace of having been here."""
    metadata.setdefault("labels", {})["top-level-label-1"] = "top-level-label-value-1"
    metadata.setdefault("annotations", {})["top-level-annotation-1"] = (
        "top-level-annotation-value-1"
    )


def add_files_and_commands(template: Template[Variables], *where: str) -> None:
    """What users want on their machines, beside what is there."""
    if template.variables.files:
        template.sequence(*where, "files").extend(
            {
                "path": file.path,
                "content": file.content,
                "owner": "root:root",
                "permissions": "0600",
                **({"contentFormat": file.content_format} if file.content_format else {}),
            }
            for file in template.variables.files
        )
    if template.variables.pre_kubeadm_commands:
        commands = template.sequence(*where, "preKubeadmCommands")
        commands.extend(template.variables.pre_kubeadm_commands)


@mutations.on("DevClusterTemplate", api_version=DEV)
def load_balancer_image(template: Template[Variables]) -> None:
    """Take the load balancer's image from where the user says."""
    if template.variables.image_repository is None:
        return
    mark(template.metadata)
    if "docker" in template.mapping("backend"):
        balancer = template.mapping("backend", "docker", "loadBalancer")
        balancer["imageRepository"] = template.variables.image_repository


@mutations.on("KubeadmControlPlaneTemplate", api_version=KUBEADM_CONTROL_PLANE)
def control_plane(template: Template[Variables]) -> None:
    """More to log, and what the user wants on control planes."""
    builtin = template.builtin.control_plane
    if builtin is None:
        raise Failure("a control plane's template has no control plane")
    mark(template.metadata)
    verbose = {"name": "v", "value": "2"}
    for part in ("apiServer", "controllerManager", "scheduler"):
        where = ("kubeadmConfigSpec", "clusterConfiguration", part, "extraArgs")
        template.sequence(*where).append(verbose)
    version = builtin.version.replace("+", "_")
    labels = {"name": "node-labels", "value": f"kubernetesVersion={version}"}
    for part in ("initConfiguration", "joinConfiguration"):
        where = ("kubeadmConfigSpec", part, "nodeRegistration", "kubeletExtraArgs")
        template.sequence(*where).extend((verbose, labels))
    surge = template.variables.kubeadm_control_plane_max_surge
    if surge:
        strategy = template.mapping("rollout", "strategy")
        strategy["type"] = "RollingUpdate"
        rolling = template.mapping("rollout", "strategy", "rollingUpdate")
        rolling["maxSurge"] = int(surge) if surge.isdecimal() else surge
    add_files_and_commands(template, "kubeadmConfigSpec")


@mutations.on("KubeadmConfigTemplate", api_version=KUBEADM)
def workers(template: Template[Variables]) -> None:
    """More to log, and what the user wants on workers."""
    mark(template.object["metadata"])
    arguments = ("joinConfiguration", "nodeRegistration", "kubeletExtraArgs")
    template.sequence(*arguments).append({"name": "v", "value": "2"})
    add_files_and_commands(template)
    template.object["metadata"]["annotations"].update(
        template.variables.kubeadm_config_template_annotations
    )


@mutations.on("DevMachineTemplate", api_version=DEV)
def machine_image(template: Template[Variables]) -> None:
    """The image for the version that the machines are to be on."""
    mark(template.object["metadata"])
    owner = template.builtin.control_plane or template.builtin.machine_deployment
    set_image(template, owner.version if owner else "")


@mutations.on("DevMachinePoolTemplate", api_version=DEV)
def pool_image(template: Template[Variables]) -> None:
    """The image for the version that the pool is to be on."""
    mark(template.metadata)
    owner = template.builtin.machine_pool
    set_image(template, owner.version if owner else "")


def set_image(template: Template[Variables], version: str) -> None:
    """Run this version on machines that are containers."""
    if not version:
        raise Failure("no version is known for a machine's template")
    if "docker" in template.mapping("backend"):
        template.mapping("backend", "docker")["customImage"] = f"kindest/node:{version}"


@ext.handler(ValidateTopology)
def validate_topology(_: Call[ValidateTopology, None]) -> Proceed:
    """Agree to everything."""
    return proceed()


if __name__ == "__main__":
    ext.run()
