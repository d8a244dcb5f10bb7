"""Prepares restores on pods: creates a pod for each etcd member, and sends the snapshot to it."""

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capelin.api import Unstructured
from capelin.api.core import Pod
from capelin.client import AlreadyExists, Client, ClientError
from capelin.provider import Blocked

from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backends import ReadSnapshot
from capelin_control_plane.backends.pods.names import OWNER_ANNOTATION
from capelin_control_plane.backends.pods.own_objects import STOP_SECONDS, OwnObjects
from capelin_control_plane.backends.pods.port_forward import forwarded_port
from capelin_control_plane.backends.pods.restore_pods import (
    Create,
    Delete,
    Send,
    Wait,
    is_restore_pod,
    next_pod_step,
)
from capelin_control_plane.backends.restore_member import PORT, NotReceivedError, send_snapshot

_POLL_SECONDS: Final = 1.0
_LONGEST_PROBLEM: Final = 30.0
"""A pod can have a problem for a moment, such as a volume that is still attached elsewhere."""
_LONGEST: Final = 3600.0
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


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
