"""The bench of each contract: which objects surround the object under test."""

from datetime import UTC, datetime
from typing import ClassVar, Final

from capelin.api import Resource, Unstructured
from capelin.api.capi import Machine, MachinePool
from capelin.contract import BOOTSTRAP_DATA_KEY, CERTIFICATE_KEY, PRIVATE_KEY_KEY, secret_name
from capelin.pki import new_ca

from capelin_conformance.providers.bench import CLUSTER, SECRET, STUB_CONFIG, STUB_MACHINE, Bench
from capelin_conformance.providers.fields import value_at
from capelin_conformance.providers.rules import Contract

POOL_REPLICAS: Final = 2


class InfraClusterBench(Bench):
    """A Cluster with the object under test as its infrastructure."""

    owner = CLUSTER
    agreement = "status.initialization.infrastructureProvisioned"

    async def create(
        self, *, paused: bool = False, infrastructure: bool = True, data: bool = True
    ) -> None:
        del infrastructure, data
        await self.create_object(self.resource, paused=paused)
        await self.create_cluster(await self.create_control_plane(), self.resource)
        await self.finish_control_plane()


class ControlPlaneBench(Bench):
    """A Cluster with the object under test as its control plane."""

    owner = CLUSTER
    agreement = "status.initialization.controlPlaneInitialized"

    async def create(
        self, *, paused: bool = False, infrastructure: bool = True, data: bool = True
    ) -> None:
        del data
        cluster = await self.create_infrastructure()
        await self.create_object(self.resource, paused=paused)
        await self.create_cluster(self.resource, cluster)
        if infrastructure:
            await self.finish_infrastructure()

    async def secret(self, suffix: str) -> Unstructured | None:
        """The Cluster's secret with a suffix, such as `kubeconfig`."""
        return await self.client.find(SECRET, f"{self.name}-{suffix}", self.namespace)


class MachineBench(Bench):
    """A Machine with the object under test as its infrastructure."""

    owner = Machine.resource
    agreement = "status.initialization.infrastructureProvisioned"
    identity = "spec.providerID"
    template: ClassVar[str] = "spec"
    """The field of the owner that describes a Machine."""

    def owner_spec(self, machine: Unstructured) -> Unstructured:
        """The spec of the owner, from the spec of a Machine."""
        return machine

    async def create(
        self, *, paused: bool = False, infrastructure: bool = True, data: bool = True
    ) -> None:
        cluster = await self.create_infrastructure()
        await self.create_cluster(await self.create_control_plane(), cluster)
        await self.create_object(STUB_CONFIG)
        await self.create_object(self.resource, paused=paused)
        spec = _machine_spec(self, config=STUB_CONFIG, infrastructure=self.resource)
        await self.create_object(self.owner, spec=self.owner_spec(spec))
        await self.finish_control_plane()
        if infrastructure:
            await self.finish_infrastructure()
        if data:
            await self.finish_data()

    async def finish_data(self) -> None:
        """Let the stub of the bootstrap data become ready, and wait until core has noticed.

        Raises:
            UntriedError: core has not noticed in time.
        """
        name = f"{self.name}-data"
        await self.create_secret(name, {BOOTSTRAP_DATA_KEY: b"#cloud-config\n{}\n"})
        status = {"initialization": {"dataSecretCreated": True}, "dataSecretName": name}
        await self.set_status(STUB_CONFIG, status)
        await self.wait_for(self.owner, f"{self.template}.bootstrap.dataSecretName", value=name)

    async def identities(self) -> object:
        return value_at(await self.get(), self.identity)


class BootstrapBench(Bench):
    """A Machine with the object under test as its bootstrap data."""

    owner = Machine.resource
    agreement = "status.initialization.bootstrapDataSecretCreated"

    async def create(
        self, *, paused: bool = False, infrastructure: bool = True, data: bool = True
    ) -> None:
        del data
        cluster = await self.create_infrastructure()
        await self.create_cluster(await self.create_control_plane(), cluster)
        # The nodes that join verify the API server with the authority of its control plane.
        ca = new_ca(self.name, now=datetime.now(UTC))
        authority = {CERTIFICATE_KEY: ca.certificate_pem, PRIVATE_KEY_KEY: ca.private_key_pem}
        await self.create_secret(secret_name(self.name, "ca"), authority)
        await self.create_object(STUB_MACHINE)
        await self.create_object(self.resource, paused=paused)
        spec = _machine_spec(self, config=self.resource, infrastructure=STUB_MACHINE)
        await self.create_object(self.owner, spec=spec)
        await self.finish_control_plane()
        if infrastructure:
            await self.finish_infrastructure()


class MachinePoolBench(MachineBench):
    """A MachinePool with the object under test as its infrastructure."""

    owner = MachinePool.resource
    identity = "spec.providerIDList"
    template = "spec.template.spec"

    def owner_spec(self, machine: Unstructured) -> Unstructured:
        return {"clusterName": self.name, "replicas": POOL_REPLICAS, "template": {"spec": machine}}


def _machine_spec(bench: Bench, *, config: Resource, infrastructure: Resource) -> Unstructured:
    return {
        "clusterName": bench.name,
        "version": bench.world.kubernetes_version,
        "bootstrap": {"configRef": bench.reference(config)},
        "infrastructureRef": bench.reference(infrastructure),
    }


BENCHES: Final[dict[Contract, type[Bench]]] = {
    "control-plane": ControlPlaneBench,
    "infra-cluster": InfraClusterBench,
    "infra-machine": MachineBench,
    "machine-pool": MachinePoolBench,
    "bootstrap": BootstrapBench,
}
"""The contracts whose behaviour can be checked."""
