"""The objects around the object under test, on a management cluster with Cluster API's core.

A bench is one namespace with one Cluster. The check plays the other providers: it writes the
statuses of stub kinds, so that it decides when the infrastructure, the bootstrap data or the
control plane becomes ready.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final
from urllib.parse import urlsplit

from capelin.api import ObjectMeta, Resource, Unstructured
from capelin.api.capi import Cluster
from capelin.api.core import Namespace, Secret
from capelin.client import Client, Invalid, NotServed
from capelin.contract import (
    CLUSTER_NAME_LABEL,
    KUBECONFIG_KEY,
    PAUSED_ANNOTATION,
    SECRET_TYPE,
    secret_name,
)
from capelin_embedded.binaries import DEFAULT_KUBERNETES

from capelin_conformance.providers.fields import items_at, mapping_at, milestone_path, value_at
from capelin_conformance.providers.manager import ManagerProcess
from capelin_conformance.providers.manifests import CustomKind, Subject
from capelin_conformance.providers.rules import UntriedError

STUB_CLUSTER: Final = Resource(
    "infrastructure.cluster.x-k8s.io", "v1alpha1", "ConformanceCluster", "conformanceclusters"
)
STUB_CONTROL_PLANE: Final = Resource(
    "controlplane.cluster.x-k8s.io",
    "v1alpha1",
    "ConformanceControlPlane",
    "conformancecontrolplanes",
)
STUB_MACHINE: Final = Resource(
    "infrastructure.cluster.x-k8s.io", "v1alpha1", "ConformanceMachine", "conformancemachines"
)
STUB_CONFIG: Final = Resource(
    "bootstrap.cluster.x-k8s.io", "v1alpha1", "ConformanceConfig", "conformanceconfigs"
)
STUBS: Final = (STUB_CLUSTER, STUB_CONTROL_PLANE, STUB_MACHINE, STUB_CONFIG)
# Plain JSON keeps the fields that our typed kinds do not have.
CLUSTER: Final[Resource] = Cluster.resource
SECRET: Final[Resource] = Secret.resource

_CLEANUP_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Timing:
    """How long checks wait, in seconds."""

    patience: float = 60.0
    """For a state that has to come."""
    hold: float = 3.0
    """For a state that must not come."""
    rest: float = 10.0
    """For writes of an object at rest."""


@dataclass(frozen=True, slots=True)
class World:
    """The context that all benches of a run share."""

    client: Client
    subject: Subject
    samples: Sequence[Unstructured] = ()
    """Objects of the provider. Benches use their specs, labels and annotations."""
    timing: Timing = field(default_factory=Timing)
    kubernetes_version: str = DEFAULT_KUBERNETES
    manager: ManagerProcess | None = None
    """The provider's manager, if the checks run it."""

    def sample(self, kind: str) -> Unstructured:
        """The sample of a kind. It is empty if the user gave none."""
        empty: Unstructured = {}
        return next((obj for obj in self.samples if obj.get("kind") == kind), empty)

    @property
    def own_cluster(self) -> Unstructured | None:
        """The sample of the Cluster's infrastructure, of this provider or of another one."""
        tested = self.subject.kind.kind
        kinds = (obj["kind"] for obj in self.samples if obj["kind"] != tested)
        return next((self.sample(kind) for kind in kinds if kind.endswith("Cluster")), None)

    @property
    def others(self) -> list[Unstructured]:
        """Samples of other providers' kinds, such as the machine template of a control plane."""
        find = self.subject.manifests.find_kind
        own = self.own_cluster
        return [obj for obj in self.samples if find(obj["kind"]) is None and obj != own]

    async def resource_of(self, sample: Unstructured) -> Resource:
        """The resource of a sample, which for other providers' kinds is in the sample's version.

        Raises:
            UntriedError: the sample has no version.
        """
        if (kind := self.subject.manifests.find_kind(sample["kind"])) is not None:
            return resource_of_kind(kind)
        if "apiVersion" not in sample:
            raise UntriedError(f"the sample of {sample['kind']} has no apiVersion")
        return await self.client.resource_of(sample)


def stub_manifests() -> list[Unstructured]:
    """The CRDs of the stub kinds, and the permission of all providers to read their objects."""
    rbac = "rbac.authorization.k8s.io"
    metadata = {"name": "capelin-conformance-stubs"}
    rules = [
        {"apiGroups": [stub.group], "resources": [stub.plural], "verbs": ["get", "list", "watch"]}
        for stub in STUBS
    ]
    role = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": metadata["name"]},
        "subjects": [{"apiGroup": rbac, "kind": "Group", "name": "system:serviceaccounts"}],
    }
    return [*map(_stub_definition, STUBS), role, binding]


def _stub_definition(stub: Resource) -> Unstructured:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    version: Unstructured = {
        "name": stub.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{stub.plural}.{stub.group}",
            "labels": {"cluster.x-k8s.io/v1beta2": stub.version},
        },
        "spec": {
            "group": stub.group,
            "names": {"kind": stub.kind, "listKind": f"{stub.kind}List", "plural": stub.plural},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def resource_of_kind(kind: CustomKind) -> Resource:
    """The resource of a kind in the version that core uses."""
    version = str(kind.contract_version.get("name", ""))
    return Resource(kind.group, version, kind.kind, kind.plural)


class Bench(ABC):
    """One namespace with a Cluster and the object under test.

    All its objects have the name of the namespace: the Nodes of all benches are in one cluster.
    """

    owner: ClassVar[Resource]
    """The kind of Cluster API's object to which the object under test belongs."""
    agreement: ClassVar[str]
    """The field of the owner that core sets when the object has reached its milestone."""
    identity: ClassVar[str] = "spec.controlPlaneEndpoint"
    """The field that identifies the infrastructure of the object under test. It never changes."""

    def __init__(self, world: World, namespace: str) -> None:
        self.world = world
        self.client = world.client
        self.namespace = self.name = namespace
        self.timing = world.timing
        self.resource = resource_of_kind(world.subject.kind)
        self.milestone = milestone_path(world.subject.contract, world.subject.kind.generation)

    @property
    def manager(self) -> ManagerProcess:
        """The provider's manager.

        Raises:
            UntriedError: the checks do not run it.
        """
        if self.world.manager is None:
            raise UntriedError("the checks do not run the manager: add --manager")
        return self.world.manager

    # The object under test

    @abstractmethod
    async def create(
        self, *, paused: bool = False, infrastructure: bool = True, data: bool = True
    ) -> None:
        """Create the Cluster, the object under test and its owner.

        Args:
            paused: Whether the object has the annotation of a pause from the beginning.
            infrastructure: Whether the Cluster's infrastructure becomes ready.
            data: Whether the bootstrap data becomes ready.
        """

    async def provision(self) -> Unstructured:
        """Create everything, and wait until the object under test has reached its milestone.

        Raises:
            UntriedError: it did not reach the milestone in time.
        """
        await self.create()
        if not await self.becomes(self.reached):
            raise UntriedError(f"{self.milestone} is not true after {self.timing.patience:g} s")
        return await self.get()

    async def find(self) -> Unstructured | None:
        return await self.client.find(self.resource, self.name, self.namespace)

    async def get(self) -> Unstructured:
        return await self.client.get(self.resource, self.name, self.namespace)

    async def reached(self) -> bool:
        """Whether the object under test has reached its milestone."""
        found = await self.find()
        return found is not None and value_at(found, self.milestone) is True

    async def core_agrees(self) -> bool:
        """Whether core has taken over the milestone."""
        owner = await self.client.get(self.owner, self.name, self.namespace)
        return value_at(owner, self.agreement) is True

    async def is_gone(self) -> bool:
        return await self.find() is None

    async def condition(self, type_: str) -> str | None:
        """The status of a condition of the object under test."""
        conditions = items_at(await self.get(), "status.conditions")
        return next((c.get("status") for c in conditions if c.get("type") == type_), None)

    async def patch_metadata(self, metadata: Mapping[str, object]) -> None:
        """Change metadata of the object under test with a merge patch."""
        await self.client.patch(self.resource, self.name, self.namespace, {"metadata": metadata})

    async def pause(self, *, paused: bool) -> None:
        """Begin or end a pause of the object under test."""
        await self.patch_metadata({"annotations": {PAUSED_ANNOTATION: "true" if paused else None}})

    async def pause_cluster(self, *, paused: bool) -> None:
        patch = {"spec": {"paused": True if paused else None}}
        await self.client.patch(CLUSTER, self.name, self.namespace, patch)

    async def remove_status(self) -> None:
        """Remove the status of the object under test: `clusterctl move` does not move it.

        Raises:
            UntriedError: the API server does not accept the removal.
        """
        try:
            await self.set_status(self.resource, None)
        except Invalid as error:
            raise UntriedError(f"the API server keeps the status: {error}") from None

    # Time

    async def becomes(
        self, look: Callable[[], Awaitable[bool]], seconds: float | None = None
    ) -> bool:
        """Whether something becomes true in time."""
        end = time.monotonic() + (self.timing.patience if seconds is None else seconds)
        while not await look():
            if time.monotonic() > end:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    async def hold(self) -> None:
        """Wait, so that the provider can do what it must not do."""
        await asyncio.sleep(self.timing.hold)

    async def changes(self, since: Unstructured) -> list[Unstructured]:
        """An earlier state of the object under test, and its state after each later write."""
        found = [since]
        events = self.client.watch(
            self.resource,
            self.namespace,
            fields={"metadata.name": self.name},
            since=since["metadata"]["resourceVersion"],
        )
        try:
            async with asyncio.timeout(self.timing.rest):
                async for event in events:
                    found.append(event.object)  # noqa: PERF401 - the time limit ends the loop
        except TimeoutError:
            pass
        finally:
            await events.aclose()
        return found

    @asynccontextmanager
    async def recorded(self) -> AsyncGenerator[list[Unstructured]]:
        """All states of the object under test during a block."""
        states: list[Unstructured] = []

        async def record() -> None:
            fields = {"metadata.name": self.name}
            async for event in self.client.watch(self.resource, self.namespace, fields=fields):
                states.append(event.object)  # noqa: PERF401 - the caller reads it at any time

        recording = asyncio.create_task(record())
        try:
            yield states
        finally:
            recording.cancel()
            await asyncio.wait({recording})

    async def size(self) -> dict[str, int]:
        """The number of Secrets, and of objects of each of the provider's kinds."""
        kinds = map(resource_of_kind, self.world.subject.manifests.kinds)
        found: dict[str, int] = {}
        for resource in (SECRET, *kinds):
            with suppress(NotServed):
                found[resource.kind] = len((await self.client.list(resource, self.namespace)).items)
        return found

    # The Cluster and the other providers

    async def create_cluster(self, control_plane: Resource, infrastructure: Resource) -> None:
        """Create the Cluster. Its other objects exist already."""
        spec = {
            "controlPlaneRef": self.reference(control_plane),
            "infrastructureRef": self.reference(infrastructure),
        }
        await self.create_object(CLUSTER, spec=spec)

    def reference(self, resource: Resource) -> Unstructured:
        """A reference to the bench's object of a kind."""
        return {"apiGroup": resource.group, "kind": resource.kind, "name": self.name}

    async def create_infrastructure(self) -> Resource:
        """Create the Cluster's infrastructure, from a sample or as a stub, and other samples."""
        for other in self.world.others:
            manifest = {**other, "metadata": {**other["metadata"], "namespace": self.namespace}}
            await self.client.create(manifest, resource=await self.world.resource_of(other))
        own = self.world.own_cluster
        resource = STUB_CLUSTER if own is None else await self.world.resource_of(own)
        await self.create_object(resource)
        return resource

    async def create_control_plane(self) -> Resource:
        """Create a stub. The management cluster plays the workload cluster, too."""
        address = urlsplit(self.client.config.server.address)
        endpoint = {"host": address.hostname, "port": address.port or 443}
        await self.create_object(STUB_CONTROL_PLANE, spec={"controlPlaneEndpoint": endpoint})
        kubeconfig = self.client.config.flattened(name=self.name)
        name = secret_name(self.name, "kubeconfig")
        await self.create_secret(name, {KUBECONFIG_KEY: kubeconfig})
        return STUB_CONTROL_PLANE

    async def create_object(
        self, resource: Resource, *, paused: bool = False, spec: Unstructured | None = None
    ) -> None:
        """Create an object with the labels, the annotations and the spec of its kind's sample."""
        sample = self.world.sample(resource.kind)
        pause = {PAUSED_ANNOTATION: "true"} if paused else {}
        manifest: Unstructured = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "labels": {**mapping_at(sample, "metadata.labels"), CLUSTER_NAME_LABEL: self.name},
                "annotations": {**mapping_at(sample, "metadata.annotations"), **pause},
            },
            "spec": {**mapping_at(sample, "spec"), **(spec or {})},
        }
        await self.client.create(manifest, resource=resource)

    async def create_secret(self, name: str, data: Mapping[str, bytes]) -> None:
        labels = {CLUSTER_NAME_LABEL: self.name}
        metadata = ObjectMeta(name=name, namespace=self.namespace, labels=labels)
        await self.client.create(Secret(metadata=metadata, type=SECRET_TYPE, data={**data}))

    async def finish_infrastructure(self) -> None:
        """Let the Cluster's infrastructure become ready, and wait until core has noticed.

        Raises:
            UntriedError: core has not noticed in time.
        """
        if self.world.own_cluster is None:
            await self.set_status(STUB_CLUSTER, {"initialization": {"provisioned": True}})
        await self.wait_for(CLUSTER, "status.initialization.infrastructureProvisioned", value=True)

    async def finish_control_plane(self) -> None:
        """Let the stub of the control plane become ready, and wait until core has noticed.

        Raises:
            UntriedError: core has not noticed in time.
        """
        status = {
            "initialization": {"controlPlaneInitialized": True},
            # Otherwise core deletes no Node: the Cluster has no Machines of a control plane.
            "externalManagedControlPlane": True,
            "versions": [{"version": self.world.kubernetes_version}],
        }
        await self.set_status(STUB_CONTROL_PLANE, status)
        await self.wait_for(CLUSTER, "status.initialization.controlPlaneInitialized", value=True)

    async def set_status(self, resource: Resource, status: Unstructured | None) -> None:
        patch = {"status": status}
        await self.client.patch(resource, self.name, self.namespace, patch, subresource="status")

    async def wait_for(self, resource: Resource, path: str, *, value: object) -> None:
        """Wait until core has written a field of one of its objects.

        Raises:
            UntriedError: core has not written it in time.
        """

        async def is_written() -> bool:
            obj = await self.client.get(resource, self.name, self.namespace)
            return value_at(obj, path) == value

        if not await self.becomes(is_written):
            raise UntriedError(f"{path} of the {resource.kind} is not {value}")

    async def clean_up(self) -> None:
        """Delete the Cluster and the namespace. The rule of deletion judges objects that stay."""

        async def is_deleted() -> bool:
            return await self.client.find(CLUSTER, self.name, self.namespace) is None

        if not await self.is_gone():
            await self.pause(paused=False)
        if not await is_deleted():
            await self.pause_cluster(paused=False)
            await self.client.delete(CLUSTER, self.name, self.namespace)
            await self.becomes(is_deleted, _CLEANUP_SECONDS)
        await self.client.delete(Namespace, self.namespace)
