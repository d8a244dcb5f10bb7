"""A namespace with one Cluster that waits for one real cause, which `capelin explain` must name."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from capelin.api import Unstructured
from capelin.api.capi import Machine, MachineDeployment
from capelin.api.core import Pod
from capelin.client import Client, NotFound, WorkloadClients
from capelin.contract import PAUSED_ANNOTATION
from capelin.testing.waiting import until
from capelin_cli.explain.model import Explanation
from capelin_cli.explain.reading import read_facts
from capelin_cli.explain.walk import explain
from capelin_cli.status.readiness import wait_until_ready
from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.operations.sleep import SLEEP_ANNOTATION
from capelin_machine_pool.api import CapelinCluster, CapelinMachine, CapelinMachineTemplate

from tests.integration.pools import VERSION, cluster_manifests, reference

WORKERS = "md"
WITHIN = 300


@dataclass(frozen=True)
class Scene:
    """A namespace with one Cluster of the same name."""

    client: Client
    workloads: WorkloadClients
    name: str

    async def apply(self, *manifests: Unstructured) -> None:
        for manifest in manifests:
            await self.client.apply(manifest)

    async def create(
        self,
        spec: Mapping[str, Any] | None = None,
        control_plane: Mapping[str, Any] | None = None,
        annotations: Mapping[str, Mapping[str, str]] | None = None,
        leave_out: str = "",
    ) -> None:
        """Create the Cluster and its parts without Machines."""
        for manifest in cluster_manifests(self.name, self.name):
            kind = manifest["kind"]
            if kind == "Cluster":
                manifest["spec"].update(spec or {})
            if kind == "CapelinControlPlane":
                manifest["spec"].update(control_plane or {})
            manifest["metadata"]["annotations"] = dict((annotations or {}).get(kind, {}))
            if kind != leave_out:
                await self.client.apply(manifest)

    async def ready(self) -> None:
        """Create the Cluster, and wait until it is ready."""
        await self.create()
        await self.settles()

    async def settles(self) -> None:
        """Wait until the Cluster is ready, and then check that nothing is reported about it."""
        progress: list[str] = []
        await wait_until_ready(self.client, self.name, self.name, WITHIN, progress.append)
        explanation = await self.explanation()
        assert (explanation.state, explanation.chains) == ("Ready", [])

    def workers(
        self, faults: Mapping[str, Any] | None = None, bootstrap: Mapping[str, Any] | None = None
    ) -> "Workers":
        """A MachineDeployment with one simulated machine, which does not exist yet."""
        metadata = {"name": WORKERS, "namespace": self.name}
        registration = {"nodeRegistration": {"name": "{{ ds.meta_data.local_hostname }}"}}
        config = {"joinConfiguration": registration, **(bootstrap or {})}
        simulated = {"startupSeconds": 0, "startupJitterSeconds": 0, "faults": faults or {}}
        bootstrap_kind, kind = "KubeadmConfigTemplate", CapelinMachineTemplate.resource.kind
        machine: dict[str, Any] = {
            "clusterName": self.name,
            "version": VERSION,
            "bootstrap": {"configRef": reference("bootstrap", bootstrap_kind, WORKERS)},
            "infrastructureRef": reference("infrastructure", kind, WORKERS),
        }
        return Workers(
            bootstrap={
                "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
                "kind": bootstrap_kind,
                "metadata": metadata,
                "spec": {"template": {"spec": config}},
            },
            infrastructure={
                "apiVersion": CapelinMachineTemplate.resource.api_version,
                "kind": kind,
                "metadata": metadata,
                "spec": {"template": {"spec": {"simulated": simulated}}},
            },
            deployment={
                "apiVersion": MachineDeployment.resource.api_version,
                "kind": "MachineDeployment",
                "metadata": metadata,
                "spec": {"clusterName": self.name, "replicas": 1, "template": {"spec": machine}},
            },
        )

    async def add(self, workers: "Workers") -> None:
        await self.apply(workers.bootstrap, workers.infrastructure, workers.deployment)

    async def with_workers(self) -> None:
        """Create the Cluster and a machine, and wait until both are ready."""
        await self.ready()
        await self.add(self.workers())
        await self.settles()

    async def delete_machine(self) -> None:
        (machine,) = (await self.client.list(Machine, self.name)).items
        await self.client.delete(Machine, machine.name, self.name)

    async def keep(self, kind: type[CapelinCluster | CapelinMachine], name: str) -> None:
        """Add the finalizer of another program to an object."""
        found = await self.client.get(kind, name, self.name)
        finalizers = [*found.metadata.finalizers, "example.com/keep"]
        await self.client.patch(kind, name, self.name, {"metadata": {"finalizers": finalizers}})

    async def sleep(self) -> None:
        """Put the control plane to sleep, if it exists."""
        patch = {"metadata": {"annotations": {SLEEP_ANNOTATION: datetime.now(UTC).isoformat()}}}
        with suppress(NotFound):
            await self.client.patch(CapelinControlPlane, self.name, self.name, patch)

    async def explanation(self) -> Explanation:
        facts = await read_facts(self.client, self.name, self.name, None)
        assert facts is not None
        return explain(facts)


@dataclass
class Workers:
    """The manifests of a MachineDeployment, which a failure may change before they are applied."""

    bootstrap: Unstructured
    infrastructure: Unstructured
    deployment: Unstructured

    @property
    def machine(self) -> dict[str, Any]:
        """The template of Machines."""
        return self.deployment["spec"]["template"]


Make = Callable[[Scene], Awaitable[None]]
FAILURES: "list[Failure]" = []
"""All failures, as their modules are imported."""
PAUSED = {PAUSED_ANNOTATION: ""}
PAUSER = "the person or program that paused it"
CREATOR = "the person or program that creates it"
SECRET_CREATOR = "the person or program that creates the Secret"
TEMPLATE_CREATOR = "the person or program that creates the template"
INFRASTRUCTURE = "infrastructure-capelin"


@dataclass(frozen=True)
class Failure:
    """A failure, and the explanation of it."""

    make: Make
    cause: str
    object: str
    responsible: str

    @property
    def name(self) -> str:
        """Its name, which is also the name of its namespace and its Cluster."""
        return self.make.__name__.replace("_", "-")

    def is_named(self, explanation: Explanation) -> bool:
        """Whether an explanation names this failure, and nothing else."""
        if len(explanation.chains) != 1:
            return False
        (chain,) = explanation.chains
        # Names of Machines end with random characters.
        return (chain.cause, chain.responsible) == (self.cause, self.responsible) and str(
            chain.object
        ).startswith(self.object.format(name=self.name))


def failure(cause: str, about: str, responsible: str) -> Callable[[Make], Make]:
    """Register a failure. `explain` must report this cause, object and responsible."""

    def register(make: Make) -> Make:
        FAILURES.append(Failure(make, cause, about, responsible))
        return make

    return register


def silent_webhook(name: str, group: str, resource: str) -> Unstructured:
    """A webhook at an address that does not answer."""
    rule = {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": [resource],
    }
    webhook = {
        "name": f"{name}.example.com",
        "clientConfig": {"url": "https://127.0.0.1:9/validate"},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": f"silent-{name}"},
        "webhooks": [webhook],
    }


async def run_pod(workload: Client) -> None:
    """Run a pod of a Deployment in a workload cluster, with the label `app: web`."""
    labels = {"app": "web"}
    pod = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "web", "image": "example.com/web"}]},
    }
    await workload.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"matchLabels": labels}, "template": pod},
        }
    )

    async def runs() -> bool:
        pods = (await workload.list(Pod, "default")).items
        return bool(pods) and all(pod.status.phase == "Running" for pod in pods)

    await until(runs, within=WITHIN)


async def protected_pod(workload: Client) -> None:
    """Run a pod whose PodDisruptionBudget permits no eviction."""
    await run_pod(workload)
    await workload.apply(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        }
    )
