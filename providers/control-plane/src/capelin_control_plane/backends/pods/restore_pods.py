"""Restores on pods: a pod for each etcd member creates its data, in the member's volume.

The ConfigMap about etcd's cluster names the restore whose data is in use. So one write replaces the
data of all members, and the old data stays in another folder.
"""

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capelin.api import Unstructured
from capelin.api.core import Pod
from capelin.client import AlreadyExists, Client, ClientError
from capelin.provider import Blocked

from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backends import ReadSnapshot
from capelin_control_plane.backends.pods.membership import forwarded_port, peer_url
from capelin_control_plane.backends.pods.names import (
    COMPONENT_LABEL,
    OWNER_ANNOTATION,
    Names,
)
from capelin_control_plane.backends.pods.objects import Workload
from capelin_control_plane.backends.pods.own_objects import STOP_SECONDS, OwnObjects
from capelin_control_plane.backends.pods.pod_status import exit_message, failure_of, is_running
from capelin_control_plane.backends.pods.workloads import ETCD_VOLUME, folder_of
from capelin_control_plane.backends.restore_member import PORT, NotReceivedError, send_snapshot
from capelin_control_plane.backup.restores import RestoreFiles
from capelin_control_plane.desired.control_plane import ControlPlane

_POLL_SECONDS: Final = 1.0
_LONGEST_PROBLEM: Final = 30.0
"""A pod can have a problem for a moment, such as a volume that is still attached elsewhere."""
_LONGEST: Final = 3600.0
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
COMPONENT: Final = "etcd-restore"
"""The label of these pods."""
REQUEST_ANNOTATION: Final = "controlplane.cluster.x-k8s.io/capelin-restore"
"""On these pods, the request and the number of members."""


@dataclass(frozen=True, slots=True)
class RestorePods:
    """The pods that create the data of etcd members."""

    client: Client
    image: str | None = None
    """Their image. None: that of the provider's own pod."""

    async def find_image(self) -> str:
        """The image of these pods.

        Raises:
            Blocked: the provider runs outside of the cluster, and no image is configured.
        """
        if self.image is not None:
            return self.image
        with suppress(FileNotFoundError):
            namespace = await asyncio.to_thread(_NAMESPACE_FILE.read_text)
            own = await self.client.find(Pod, os.environ.get("HOSTNAME", ""), namespace.strip())
            if own is not None and (image := own.spec.containers[0].image):
                return image
        raise Blocked(
            Reason.RESTORE_REFUSED,
            "the provider does not run in a pod whose image a restore could use",
            "ask its administrator for --restore-image with the image of its release",
        )

    async def prepare(self, manifests: Sequence[Unstructured], read: ReadSnapshot) -> None:
        """Create the pods, and send the snapshot to each. Returns when all data is complete.

        Raises:
            Blocked: a pod cannot run, or refuses the snapshot.
            BackupError: the snapshot is damaged.
        """
        for manifest in manifests:
            pod = await self._find(manifest)
            if isinstance(next_pod_step(pod, manifest), Create):
                await self._create(manifest)
        for manifest in manifests:
            await self._complete(manifest, read, sent=False)

    async def delete(self, pods: Sequence[Pod]) -> None:
        """Delete the pods of a control plane that create data."""
        for pod in pods:
            if is_restore_pod(pod) and pod.metadata.deletion_timestamp is None:
                await OwnObjects(self.client).evict(pod, STOP_SECONDS)

    async def _complete(self, manifest: Unstructured, read: ReadSnapshot, *, sent: bool) -> None:
        name, began, problem_since = manifest["metadata"]["name"], time.monotonic(), None
        while time.monotonic() - began < _LONGEST:
            pod = await self._find(manifest)
            step = next_pod_step(pod, manifest)
            problem = step.problem if isinstance(step, Wait) else ""
            now = time.monotonic()
            problem_since = (problem_since or now) if problem else None
            if problem_since is not None and now - problem_since > _LONGEST_PROBLEM:
                raise Blocked(Reason.RESTORE_FAILED, f"pod {name} {problem}")
            match step:
                case None:
                    return
                case Create():
                    await self._create(manifest)
                case Delete(failure) if pod is not None:
                    await OwnObjects(self.client).evict(pod, STOP_SECONDS)
                    if failure:
                        raise Blocked(Reason.RESTORE_FAILED, f"pod {name}: {failure}")
                case Send() if not sent:
                    sent = await self._send(manifest, read)
                case _:
                    pass
            await asyncio.sleep(_POLL_SECONDS)
        raise Blocked(Reason.RESTORE_FAILED, f"pod {name} does not complete the data")

    async def _send(self, manifest: Unstructured, read: ReadSnapshot) -> bool:
        """Send the snapshot. Returns whether the pod received it."""
        metadata = manifest["metadata"]
        config, namespace = self.client.config, metadata["namespace"]
        with suppress(NotReceivedError):
            async with forwarded_port(config, namespace, metadata["name"], PORT) as port:
                await send_snapshot(port, read)
            return True
        # It does not listen yet, or has received the snapshot from an earlier provider.
        return False

    async def _find(self, manifest: Unstructured) -> Pod | None:
        metadata = manifest["metadata"]
        pod = await self.client.find(Pod, metadata["name"], metadata["namespace"])
        owner = metadata["annotations"][OWNER_ANNOTATION]
        if pod is not None and pod.metadata.annotations.get(OWNER_ANNOTATION) != owner:
            raise Blocked(
                Reason.NAME_TAKEN,
                f"pod {pod.name} in namespace {pod.namespace} is not this control plane's",
                "delete it, or give the control plane another name",
            )
        return pod

    async def _create(self, manifest: Unstructured) -> None:
        try:
            await self.client.create(manifest)
        except AlreadyExists:
            return
        except ClientError as error:
            name = manifest["metadata"]["name"]
            raise Blocked(
                Reason.RESTORE_FAILED, f"the management cluster refuses pod {name}: {error}"
            ) from error


def restore_pod(
    desired: ControlPlane,
    names: Names,
    index: int,
    etcd: Workload,
    *,
    image: str,
    restored: str | None,
    bump: int,
    is_placed: bool,
) -> Unstructured:
    """The pod that creates the data of a member.

    Args:
        desired: The control plane, with the request.
        names: The names of its objects.
        index: The index of the member.
        etcd: The workload of the members, whose settings apply to this pod too.
        image: The image of the provider, with etcdutl.
        restored: The restore whose data is in use.
        bump: How much the revisions grow.
        is_placed: Whether the member has a pod. Its volume may be usable on the same node only.
    """
    template: Unstructured = deepcopy(etcd.manifest["spec"]["template"])
    spec, member = template["spec"], names.member(index)
    own = next(each for each in spec["containers"] if each["name"] == "etcd")
    members = (
        f"{names.member(other)}={peer_url(names, other)}" for other in range(desired.etcd_replicas)
    )
    request = desired.restore or ""
    container = {
        "name": "restore",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/usr/bin/python3", "-m", "capelin_control_plane.backends.restore_member"],
        "args": [
            f"--volume={ETCD_VOLUME}",
            f"--folder={folder_of(request)}",
            f"--in-use={folder_of(restored)}",
            f"--name={member}",
            f"--token={names.namespace}/{names.control_plane}@{request}",
            f"--bump-revision={bump}",
            *members,
        ],
        "resources": own["resources"],
        "securityContext": own["securityContext"],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "data", "mountPath": str(ETCD_VOLUME)}],
    }
    for field in ("initContainers", "topologySpreadConstraints", "affinity"):
        spec.pop(field, None)
    claim = {"claimName": names.claim(index)}
    spec |= {
        "containers": [container],
        "restartPolicy": "Never",
        "volumes": [{"name": "data", "persistentVolumeClaim": claim}],
    }
    if is_placed:
        same_pod = {"matchLabels": {"statefulset.kubernetes.io/pod-name": member}}
        term = {"labelSelector": same_pod, "topologyKey": "kubernetes.io/hostname"}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        spec["affinity"] = {"podAffinity": required}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(names, index),
            "namespace": names.namespace,
            "labels": {**names.all_labels(desired.cluster), COMPONENT_LABEL: COMPONENT},
            "annotations": {
                OWNER_ANNOTATION: names.control_plane,
                REQUEST_ANNOTATION: _identity(desired),
            },
        },
        "spec": spec,
    }


def pod_name(names: Names, index: int) -> str:
    """The name of the pod that creates the data of a member.

    It ends like that of a member: the provider may forward ports of such pods only.
    """
    return f"{names.base}-restore-etcd-{index}"


def is_restore_pod(pod: Pod) -> bool:
    return pod.metadata.labels.get(COMPONENT_LABEL) == COMPONENT


def restore_files(
    desired: ControlPlane, names: Names, pods: Iterable[Pod], restored: str | None
) -> RestoreFiles:
    """The state of restores, from the pods that create data, and from the data in use."""
    complete = {
        pod.name
        for pod in pods
        if is_restore_pod(pod)
        and pod.status.phase == "Succeeded"
        and pod.metadata.annotations.get(REQUEST_ANNOTATION) == _identity(desired)
    }
    needed = {pod_name(names, index) for index in range(desired.etcd_replicas)}
    return RestoreFiles(prepared=desired.restore if complete >= needed else None, restored=restored)


def is_stopped(pods: Iterable[Pod]) -> bool:
    """Whether no pod uses the data of etcd, or can reach it."""
    return all(is_restore_pod(pod) for pod in pods)


@dataclass(frozen=True, slots=True)
class Create:
    """Create the pod."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the pod."""

    problem: str = ""
    """Why it failed."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send the snapshot, if that did not happen yet."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for a change of the pod."""

    problem: str = ""
    """Why it may take longer."""


def next_pod_step(pod: Pod | None, manifest: Unstructured) -> Create | Delete | Send | Wait | None:
    """How to continue with the pod of a member. None: the data of the member is complete."""
    if pod is None:
        return Create()
    if pod.metadata.deletion_timestamp is not None:
        return Wait()
    identity = manifest["metadata"]["annotations"][REQUEST_ANNOTATION]
    if pod.metadata.annotations.get(REQUEST_ANNOTATION) != identity:
        return Delete()
    if pod.status.phase == "Succeeded":
        return None
    if pod.status.phase == "Failed":
        return Delete(exit_message(pod) or failure_of(pod, "etcd"))
    return Send() if is_running(pod) else Wait(failure_of(pod, "etcd"))


def _identity(desired: ControlPlane) -> str:
    # With another number of members, the data of each is different.
    return f"{desired.restore} of {desired.etcd_replicas}"
