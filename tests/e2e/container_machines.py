"""Machines of the backend `Containers`, which join by data of the kubeadm bootstrap provider."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from capelin.api import Unstructured
from capelin.api.capi import MachineDeployment
from capelin_machine_pool.api import CapelinMachineTemplate
from capelin_machine_pool.backends.containers import ContainersBackend
from capelin_machine_pool.containers.desired import MACHINE_LABEL, ContainerPolicy
from capelin_machine_pool.containers.engine import PROVIDER_LABEL, Engine, socket_of
from capelin_machine_pool.reconcilers import MachineReconciler

from .kind_cluster import IMAGE
from .machines import KUBELET

BOOTSTRAP = "bootstrap.cluster.x-k8s.io"
TIMEOUT_SECONDS = 30
ENGINE = Engine(socket_of(os.environ))


def machine_reconciler(kind: str) -> MachineReconciler:
    """The reconciler of machines that are containers in the network of a kind cluster."""
    policy = ContainerPolicy(images=(IMAGE,), network="kind", provider=kind)
    return MachineReconciler({"Containers": ContainersBackend(ENGINE, policy)})


async def machines_for(kind: str) -> Mapping[str, str]:
    """The containers of a provider's machines, by the names of the machines."""
    providers = await ENGINE.labelled(PROVIDER_LABEL)
    found = [await ENGINE.find(id_) for id_, provider in providers.items() if provider == kind]
    return {
        container.labels[MACHINE_LABEL].partition("/")[2]: container.id
        for container in found
        if container is not None
    }


async def remove_machines(kind: str) -> None:
    for container in (await machines_for(kind)).values():
        await ENGINE.remove(container)


def machine_deployment(
    name: str, namespace: str, cluster: str, version: str, replicas: int
) -> Sequence[Unstructured]:
    """Machines that join a cluster by bootstrap data of the kubeadm bootstrap provider."""
    registration = {
        # A container fails preflight checks, and the only kubelet has the newer version.
        "ignorePreflightErrors": ["all"],
        "kubeletExtraArgs": [{"name": flag, "value": value} for flag, value in KUBELET.items()],
        "name": "{{ ds.meta_data.local_hostname }}",
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
        "infrastructureRef": {
            "apiGroup": CapelinMachineTemplate.resource.group,
            "kind": CapelinMachineTemplate.resource.kind,
            "name": name,
        },
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
            "apiVersion": CapelinMachineTemplate.resource.api_version,
            "kind": CapelinMachineTemplate.resource.kind,
            "metadata": metadata,
            "spec": {"template": {"spec": {"backend": "Containers"}}},
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
