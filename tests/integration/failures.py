"""Clusters that wait, each for one real cause. `capelin explain` must name it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from capelin.api import Unstructured
from capelin.api.capi import Cluster, Machine, MachineDeployment
from capelin.api.core import Pod
from capelin.client import Client, WorkloadClients
from capelin.contract import PAUSED_ANNOTATION
from capelin.testing.waiting import until
from capelin_infra.explain.model import Explanation
from capelin_infra.explain.reading import read_facts
from capelin_infra.explain.walk import explain
from capelin_infra.status.readiness import wait_until_ready
from capelin_machine_pool.api import CapelinMachine, CapelinMachineTemplate

from .pools import VERSION, cluster_manifests, reference

WORKERS = "md"
_WITHIN = 300


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
        progress: list[str] = []
        await wait_until_ready(self.client, self.name, self.name, _WITHIN, progress.append)

    async def add_workers(
        self,
        simulated: Mapping[str, Any] | None = None,
        bootstrap: Mapping[str, Any] | None = None,
        leave_out: str = "",
        backend: str | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Create a MachineDeployment with one simulated machine."""
        metadata = {"name": WORKERS, "namespace": self.name}
        registration = {"nodeRegistration": {"name": "{{ ds.meta_data.local_hostname }}"}}
        config = {"joinConfiguration": registration, **(bootstrap or {})}
        machine: dict[str, Any] = {
            "clusterName": self.name,
            "version": VERSION,
            "bootstrap": {"configRef": reference("bootstrap", "KubeadmConfigTemplate", WORKERS)},
            "infrastructureRef": reference(
                "infrastructure", CapelinMachineTemplate.resource.kind, WORKERS
            ),
        }
        faults = {"startupSeconds": 0, "startupJitterSeconds": 0, **(simulated or {})}
        settings: dict[str, Any] = {"backend": backend} if backend else {"simulated": faults}
        template = {"metadata": {"annotations": dict(annotations or {})}, "spec": machine}
        manifests: list[Unstructured] = [
            {
                "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
                "kind": "KubeadmConfigTemplate",
                "metadata": metadata,
                "spec": {"template": {"spec": config}},
            },
            {
                "apiVersion": CapelinMachineTemplate.resource.api_version,
                "kind": CapelinMachineTemplate.resource.kind,
                "metadata": metadata,
                "spec": {"template": {"spec": settings}},
            },
            {
                "apiVersion": MachineDeployment.resource.api_version,
                "kind": "MachineDeployment",
                "metadata": metadata,
                "spec": {"clusterName": self.name, "replicas": 1, "template": template},
            },
        ]
        await self.apply(*(each for each in manifests if each["kind"] != leave_out))

    async def delete_machine(self) -> None:
        (machine,) = (await self.client.list(Machine, self.name)).items
        await self.client.delete(Machine, machine.name, self.name)

    async def explanation(self) -> Explanation:
        facts = await read_facts(self.client, self.name, self.name, None)
        assert facts is not None
        return explain(facts)


Make = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True)
class Failure:
    """A failure, and the explanation of it."""

    name: str
    make: Make
    cause: str
    object: str
    responsible: str

    def is_named(self, explanation: Explanation) -> bool:
        """Whether an explanation names this failure, and nothing else."""
        if len(explanation.chains) != 1:
            return False
        (chain,) = explanation.chains
        # Names of Machines end with random characters.
        return (chain.cause, chain.responsible) == (self.cause, self.responsible) and str(
            chain.object
        ).startswith(self.object.format(name=self.name))


async def paused_cluster(scene: Scene) -> None:
    await scene.create({"paused": True})


async def paused_control_plane(scene: Scene) -> None:
    await scene.create(annotations={"CapelinControlPlane": {PAUSED_ANNOTATION: ""}})


async def paused_infrastructure(scene: Scene) -> None:
    await scene.create(annotations={"CapelinCluster": {PAUSED_ANNOTATION: ""}})


async def missing_infrastructure(scene: Scene) -> None:
    await scene.create(leave_out="CapelinCluster")


async def missing_control_plane(scene: Scene) -> None:
    await scene.create(leave_out="CapelinControlPlane")


async def unknown_kind(scene: Scene) -> None:
    await scene.create({"infrastructureRef": reference("infrastructure", "TunaCluster", "x")})


async def missing_class(scene: Scene) -> None:
    topology = {"classRef": {"name": "tuna"}, "version": VERSION}
    await scene.apply(
        {
            "apiVersion": Cluster.resource.api_version,
            "kind": "Cluster",
            "metadata": {"name": scene.name, "namespace": scene.name},
            "spec": {"topology": topology},
        }
    )


async def missing_encryption_key(scene: Scene) -> None:
    await scene.create(
        control_plane={"apiServer": {"encryption": {"keysFrom": {"name": "my-key"}}}}
    )


async def missing_template(scene: Scene) -> None:
    await scene.ready()
    await scene.add_workers(leave_out="CapelinMachineTemplate")


async def missing_bootstrap_secret(scene: Scene) -> None:
    await scene.ready()
    source = {"contentFrom": {"secret": {"name": "files", "key": "a"}}}
    await scene.add_workers(bootstrap={"files": [{"path": "/etc/a", **source}]})


async def machine_never_boots(scene: Scene) -> None:
    await scene.ready()
    await scene.add_workers({"faults": {"neverBoots": 100}})


async def machine_dies(scene: Scene) -> None:
    await scene.ready()
    await scene.add_workers({"faults": {"dies": 100}})


async def forbidden_backend(scene: Scene) -> None:
    await scene.ready()
    await scene.add_workers(backend="Containers")


async def exceeded_quota(scene: Scene) -> None:
    await scene.ready()
    await scene.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "small", "namespace": scene.name},
            "spec": {"hard": {"count/machines.cluster.x-k8s.io": "0"}},
        }
    )
    await scene.add_workers()


async def denying_policy(scene: Scene) -> None:
    await scene.ready()
    name = f"no-machines-{scene.name}"
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scene.name}}}
    rule = {
        "apiGroups": ["cluster.x-k8s.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": ["machines"],
    }
    await scene.apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {**here, "resourceRules": [rule]},
                "validations": [{"expression": "false", "message": "no machines here"}],
            },
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    )
    await scene.add_workers()


async def silent_webhook(scene: Scene) -> None:
    await scene.ready()
    rule = {
        "apiGroups": ["cluster.x-k8s.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": ["machines"],
    }
    webhook = {
        "name": "machines.example.com",
        "clientConfig": {"url": "https://127.0.0.1:9/validate"},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scene.name}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    await scene.apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": f"silent-{scene.name}"},
            "webhooks": [webhook],
        }
    )
    await scene.add_workers()


async def paused_workers(scene: Scene) -> None:
    await scene.ready()
    await scene.add_workers()
    await scene.settles()
    patch = {
        "metadata": {"annotations": {PAUSED_ANNOTATION: ""}},
        "spec": {"replicas": 2},
    }
    await scene.client.patch(MachineDeployment, WORKERS, scene.name, patch)


async def disruption_budget(scene: Scene) -> None:
    await scene.ready()
    await scene.add_workers()
    await scene.settles()
    async with scene.workloads.client(scene.name, scene.name) as workload:
        await protected_pod(workload)
    await scene.delete_machine()


async def protected_pod(workload: Client) -> None:
    """Run one pod, with a PodDisruptionBudget that permits no eviction."""
    labels = {"app": "web"}
    await workload.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "web", "image": "example.com/web"}]},
                },
            },
        }
    )
    await workload.apply(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
        }
    )

    async def runs() -> bool:
        pods = (await workload.list(Pod, "default")).items
        return bool(pods) and all(pod.status.phase == "Running" for pod in pods)

    await until(runs, within=_WITHIN)


async def deletion_hook(scene: Scene) -> None:
    key = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/storage"
    await scene.ready()
    await scene.add_workers(annotations={key: "storage-team"})
    await scene.settles()
    await scene.delete_machine()


async def foreign_finalizer(scene: Scene) -> None:
    await scene.ready()
    await scene.add_workers()
    await scene.settles()
    (machine,) = (await scene.client.list(CapelinMachine, scene.name)).items
    finalizers = [*machine.metadata.finalizers, "example.com/keep"]
    patch = {"metadata": {"finalizers": finalizers}}
    await scene.client.patch(CapelinMachine, machine.name, scene.name, patch)
    await scene.delete_machine()


PERSON = "the person or program that creates it"
FAILURES = (
    Failure(
        "paused-cluster",
        paused_cluster,
        "ClusterPaused",
        "Cluster {name}",
        "the person or program that paused it",
    ),
    Failure(
        "paused-control-plane",
        paused_control_plane,
        "Paused",
        "CapelinControlPlane {name}",
        "the person or program that paused it",
    ),
    Failure(
        "paused-infrastructure",
        paused_infrastructure,
        "Paused",
        "CapelinCluster {name}",
        "the person or program that paused it",
    ),
    Failure(
        "missing-infrastructure",
        missing_infrastructure,
        "ObjectMissing",
        "CapelinCluster {name}",
        PERSON,
    ),
    Failure(
        "missing-control-plane",
        missing_control_plane,
        "ObjectMissing",
        "CapelinControlPlane {name}",
        PERSON,
    ),
    Failure(
        "unknown-kind",
        unknown_kind,
        "KindNotServed",
        "TunaCluster x",
        "the administrator of the management cluster",
    ),
    Failure("missing-class", missing_class, "ObjectMissing", "ClusterClass tuna", PERSON),
    Failure(
        "missing-encryption-key",
        missing_encryption_key,
        "SecretMissing",
        "Secret my-key",
        "the person or program that creates the Secret",
    ),
    Failure(
        "missing-template",
        missing_template,
        "TemplateMissing",
        "CapelinMachineTemplate md",
        "the person or program that creates the template",
    ),
    Failure(
        "missing-bootstrap-secret",
        missing_bootstrap_secret,
        "SecretMissing",
        "Secret files",
        "the person or program that creates the Secret",
    ),
    Failure(
        "machine-never-boots",
        machine_never_boots,
        "Reported",
        "CapelinMachine md",
        "infrastructure-capelin",
    ),
    Failure(
        "machine-dies", machine_dies, "KubeletStopped", "Node md", "the kubelet of the machine"
    ),
    Failure(
        "forbidden-backend",
        forbidden_backend,
        "Reported",
        "CapelinMachine md",
        "infrastructure-capelin",
    ),
    Failure(
        "exceeded-quota",
        exceeded_quota,
        "QuotaExceeded",
        "ResourceQuota small",
        "the administrator of the namespace",
    ),
    Failure(
        "denying-policy",
        denying_policy,
        "Denied",
        "ValidatingAdmissionPolicy no-machines-{name}",
        "the author of the rejected field",
    ),
    Failure(
        "silent-webhook",
        silent_webhook,
        "WebhookFails",
        "Webhook machines.example.com",
        "the administrator of the webhook",
    ),
    Failure(
        "paused-workers",
        paused_workers,
        "Paused",
        "MachineDeployment md",
        "the person or program that paused it",
    ),
    Failure(
        "disruption-budget",
        disruption_budget,
        "DisruptionBudget",
        "PodDisruptionBudget web",
        "the owner of the PodDisruptionBudget",
    ),
    Failure("deletion-hook", deletion_hook, "DeletionHook", "Machine md", "storage-team"),
    Failure(
        "foreign-finalizer",
        foreign_finalizer,
        "Finalizer",
        "CapelinMachine md",
        "the owner of the finalizer example.com/keep",
    ),
)
