"""An infrastructure provider for tests: each machine is a container that does as its bootstrap
data say."""

from collections.abc import Sequence
from shlex import quote
from typing import Any

from capelin.api import Object, Unstructured, kind
from capelin.api.capi import MachineDeployment
from capelin.controller import Done, Result
from capelin.provider import (
    INFRA_MACHINE,
    InfraMachineContext,
    InfraMachineReconciler,
    InfraMachineSpec,
    InfraMachineStatus,
    MachineAddress,
    Provider,
)
from capelin_machine_pool.bootstrap import CloudConfig, instance_metadata, read_cloud_config

from .machines import KUBELET, docker, remove_machine, start_machine

GROUP, VERSION = "infrastructure.cluster.x-k8s.io", "v1alpha1"
BOOTSTRAP = "bootstrap.cluster.x-k8s.io"
PROVIDER_ID = "container:///"
SUCCEEDED = "/run/cluster-api/bootstrap-success.complete"
"""The file that bootstrap data write last, by Cluster API's contract."""
TIMEOUT_SECONDS = 30


@kind(group=GROUP, version=VERSION, definition=INFRA_MACHINE)
class ContainerMachine(Object[InfraMachineSpec, InfraMachineStatus]):
    """A container that is a machine."""


class ContainerMachineReconciler(InfraMachineReconciler[ContainerMachine]):
    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    async def reconcile_normal(self, ctx: InfraMachineContext, machine: ContainerMachine) -> Result:
        """Start the machine once, and again after a failed start."""
        if machine.status is None or not machine.status.initialization.provisioned:
            provider_id = f"{PROVIDER_ID}{machine.name}"
            metadata = instance_metadata(
                hostname=machine.name, instance_id=machine.uid, provider_id=provider_id
            )
            config = read_cloud_config(await ctx.bootstrap_data(), metadata)
            await remove_machine(machine.name)
            await start_machine(machine.name, self._cluster)
            await carry_out(config, machine.name)
            address = MachineAddress(type="Hostname", address=machine.name)
            ctx.set_provisioned(provider_id, addresses=[address])
        return Done()

    async def reconcile_delete(self, _: InfraMachineContext, machine: ContainerMachine) -> Result:
        await remove_machine(machine.name)
        return Done()


async def carry_out(config: CloudConfig, machine: str) -> None:
    """Apply the bootstrap data in a machine, like cloud-init."""
    for file in config.files:
        path = quote(file.path)
        script = (
            f'set -e; mkdir -p "$(dirname {path})"; umask 077; cat > {path}; '
            f"chown {quote(file.owner)} {path}; chmod {file.mode:o} {path}"
        )
        write = ("exec", "--interactive", machine, "sh", "-c", script)
        await docker(*write, content=file.content)
    for command in config.commands:
        await docker("exec", machine, "sh", "-c", command)
    await docker("exec", machine, "test", "-e", SUCCEEDED)


def provider() -> Provider:
    """The provider. The tests install only its CRDs."""
    return Provider.of(
        "container",
        "InfrastructureProvider",
        version="v0.1.0",
        module=__name__,
        reconcilers=[ContainerMachineReconciler],
    )


def machine_deployment(
    name: str, namespace: str, cluster: str, version: str, replicas: int
) -> Sequence[Unstructured]:
    """Machines that join a cluster by bootstrap data of the kubeadm bootstrap provider."""
    flags = {"provider-id": f"{PROVIDER_ID}{{{{ ds.meta_data.local_hostname }}}}", **KUBELET}
    registration = {
        # A container fails preflight checks, and the only kubelet has the newer version.
        "ignorePreflightErrors": ["all"],
        "kubeletExtraArgs": [{"name": flag, "value": value} for flag, value in flags.items()],
    }
    metadata = {"name": name, "namespace": namespace}
    config = {"joinConfiguration": {"nodeRegistration": registration}}
    timeouts = ("nodeDrainTimeoutSeconds", "nodeVolumeDetachTimeoutSeconds")
    machine: dict[str, Any] = {
        "clusterName": cluster,
        "version": version,
        "bootstrap": {
            "configRef": {"apiGroup": BOOTSTRAP, "kind": "KubeadmConfigTemplate", "name": name}
        },
        "infrastructureRef": {"apiGroup": GROUP, "kind": "ContainerMachineTemplate", "name": name},
        "deletion": dict.fromkeys(timeouts, TIMEOUT_SECONDS),
    }
    return [
        {
            "apiVersion": f"{BOOTSTRAP}/v1beta2",
            "kind": "KubeadmConfigTemplate",
            "metadata": metadata,
            "spec": {"template": {"spec": config}},
        },
        {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "ContainerMachineTemplate",
            "metadata": metadata,
            "spec": {"template": {"spec": {}}},
        },
        {
            "apiVersion": MachineDeployment.resource.api_version,
            "kind": "MachineDeployment",
            "metadata": metadata,
            "spec": {
                "clusterName": cluster,
                "replicas": replicas,
                "template": {"spec": machine},
            },
        },
    ]
