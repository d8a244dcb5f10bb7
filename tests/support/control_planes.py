"""A control plane on any backend, from the view of its user."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from capelin.api.capi import Cluster
from capelin.api.core import Secret
from capelin.client import Client, Config
from capelin.contract import CLUSTER_NAME_LABEL, KUBECONFIG_KEY, reference_to
from capelin.testing.waiting import until
from capelin_control_plane.api import BackendName, CapelinControlPlane
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backup.manifests import BACKUP_ANNOTATION
from capelin_control_plane.desired.control_plane import RESTORE_ANNOTATION

_SETTLED = {
    "Available": "True",
    "ControllerManagerAvailable": "True",
    "RollingOut": "False",
    "SchedulerAvailable": "True",
}


@dataclass(frozen=True)
class ControlPlane:
    """A control plane of a user."""

    client: Client
    namespace: str
    name: str
    backend: BackendName = "Pods"

    def named(self, name: str) -> Self:
        """Another control plane in the same namespace."""
        return replace(self, name=name)

    async def create(
        self, version: str, *, network: Mapping[str, Any] | None = None, **spec: Any
    ) -> None:
        """Create the control plane and its Cluster."""
        resource = CapelinControlPlane.resource
        reference = {"apiGroup": resource.group, "kind": resource.kind, "name": self.name}
        metadata = {"name": self.name, "namespace": self.namespace}
        of_cluster = {"controlPlaneRef": reference}
        if network is not None:
            of_cluster["clusterNetwork"] = dict(network)
        cluster = await self.client.create(Cluster.read({"metadata": metadata, "spec": of_cluster}))
        pods = {"pods": {"exposure": {"type": "NodePort"}}} if self.backend == "Pods" else {}
        spec = {"version": version, "backend": self.backend, **pods, **spec}
        mine = CapelinControlPlane.read({"metadata": metadata, "spec": spec})
        mine.metadata.labels = {CLUSTER_NAME_LABEL: self.name}
        mine.metadata.owner_references = [reference_to(cluster, controller=True)]
        await self.client.create(mine)

    async def delete_cluster(self) -> None:
        """Delete its Cluster with all machines, and wait."""
        await self.client.delete(Cluster, self.name, self.namespace)

        async def is_gone() -> bool:
            return await self.client.find(Cluster, self.name, self.namespace) is None

        await until(is_gone, within=300)

    async def delete_all(self) -> None:
        """Delete every control plane of its namespace, and wait until they are gone."""
        for found in (await self.client.list(CapelinControlPlane, self.namespace)).items:
            await self.client.delete(CapelinControlPlane, found.name, self.namespace)
        await until(self._are_gone, within=180)

    async def _are_gone(self) -> bool:
        return not (await self.client.list(CapelinControlPlane, self.namespace)).items

    async def is_gone(self) -> bool:
        return await self.client.find(CapelinControlPlane, self.name, self.namespace) is None

    async def is_initialized(self) -> bool:
        """Whether it was ever initialized."""
        status = (await self.get()).status
        return bool(status and status.initialization.control_plane_initialized)

    async def get(self) -> CapelinControlPlane:
        return await self.client.get(CapelinControlPlane, self.name, self.namespace)

    async def change(self, **spec: Any) -> None:
        await self.client.patch(CapelinControlPlane, self.name, self.namespace, {"spec": spec})

    async def annotate(self, annotation: str, value: str | None) -> None:
        patch = {"metadata": {"annotations": {annotation: value}}}
        await self.client.patch(CapelinControlPlane, self.name, self.namespace, patch)

    async def request_backup(self) -> datetime:
        """Request a backup now. Returns the moment that `backup_since` takes."""
        # A status has whole seconds, and the backup may begin in the second of its request.
        moment = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
        await self.annotate(BACKUP_ANNOTATION, moment.isoformat())
        return moment

    async def backup_since(self, moment: datetime) -> str | None:
        """The name of the newest backup, if it is not older."""
        status = (await self.get()).status
        newest = status and status.backup
        return newest.name if newest and newest.time and newest.time >= moment else None

    async def is_restore_requested(self) -> bool:
        return RESTORE_ANNOTATION in (await self.get()).metadata.annotations

    async def conditions(self) -> Mapping[str, str]:
        status = (await self.get()).status
        conditions = status.conditions if status else []
        return {condition.type: condition.status for condition in conditions}

    async def is_remediating(self) -> bool:
        """Whether an instance ended and is not ready again."""
        return (await self.conditions()).get("Remediating") == "True"

    async def reasons(self) -> set[str]:
        status = (await self.get()).status
        return {condition.reason for condition in (status.conditions if status else [])}

    async def is_settled(self) -> bool:
        """Whether it matches its spec and has no old instances."""
        return not await self.unsettled()

    async def unsettled(self) -> list[str]:
        """Differences between the control plane and its spec."""
        mine = await self.get()
        status, spec = mine.status, mine.spec
        if status is None or status.observed_generation != mine.metadata.generation:
            return ["its spec has not been observed"]
        replicas = (status.replicas, status.ready_replicas, status.up_to_date_replicas)
        versions = [count.version for count in status.versions]
        problems = [
            f"{condition.type}: {condition.reason}: {condition.message}"
            for condition in status.conditions
            if condition.status != _SETTLED.get(condition.type, condition.status)
            # etcd serves while a member is missing, or has to join or leave.
            or condition.reason == str(Reason.ETCD_CLUSTER_DEGRADED)
        ]
        if replicas != (spec.replicas,) * 3 or versions != [spec.version]:
            problems.append(f"API servers, ready, up to date: {replicas}; versions {versions}")
        if not problems and not await self._has_ended_the_rest():
            problems.append("pods that are ending")
        return problems

    async def _has_ended_the_rest(self) -> bool:
        return True

    async def settles(self) -> None:
        await until(self.unsettled, lambda problems: not problems, within=240)

    async def kubeconfig(self) -> bytes:
        secret = await self.client.get(Secret, f"{self.name}-kubeconfig", self.namespace)
        return secret.data[KUBECONFIG_KEY]

    @asynccontextmanager
    async def workload(self) -> AsyncGenerator[Client]:
        config = Config.from_kubeconfig(await self.kubeconfig())
        async with Client(config, manager="e2e") as client:
            yield client
