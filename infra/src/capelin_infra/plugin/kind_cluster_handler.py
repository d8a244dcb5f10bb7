"""The resource `KindCluster`."""

import asyncio
import json
import re
from pathlib import Path
from typing import Final

from capelin.errors import BusyError, InvalidInputError, UserError
from capelin_cli.kind import (
    KindCommands,
    KindNode,
    NodeContainer,
    archive_digest,
    cluster_config,
    is_archive,
)
from capelin_embedded.folders import provider_folder
from capelin_embedded.processes import private_folder, write_private

from capelin_infra.plugin.clusters import cluster_uid
from capelin_infra.plugin.resource import (
    Difference,
    Operation,
    PartlyCreatedError,
    ResourceHandler,
    changed_inputs,
    inputs_of,
    text_of,
)
from capelin_infra.resource_types import (
    KIND_CLUSTER,
    KindClusterInputs,
    KindClusterState,
)

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,48}[a-z0-9])?")


class KindClusterHandler(ResourceHandler[KindClusterInputs, KindClusterState]):
    """kind clusters. One is replaced only where kind cannot change it."""

    kind = KIND_CLUSTER

    def __init__(self, commands: KindCommands | None = None) -> None:
        self._commands = commands or KindCommands()

    def check(self, inputs: KindClusterInputs) -> dict[str, str]:
        failures: dict[str, str] = {}
        if not _NAME.fullmatch(inputs.name):
            failures["name"] = "a name has 1 to 50 lower-case letters, digits, dots and hyphens"
        if inputs.nodes and all(node.role != "control-plane" for node in inputs.nodes):
            failures["nodes"] = "at least one node has to be a control plane"
        for node in inputs.nodes:
            for mount in node.mounts:
                if not Path(mount.host_path).is_absolute():
                    failures["nodes"] = f"the path {mount.host_path} of a mount is not absolute"
        ports = [
            (port.listen_address, port.host_port) for node in inputs.nodes for port in node.ports
        ]
        if twice := next((port for port in ports if ports.count(port) > 1), None):
            failures["nodes"] = f"port {twice[1]} of this machine is used twice"
        for image in inputs.images:
            if image.endswith(".tar") and not Path(image).is_file():
                failures["images"] = f"the file {image} does not exist"
        return failures

    def diff(self, old: KindClusterState, new: KindClusterInputs) -> Difference:
        # Without an image, the cluster keeps the one it has, whatever the default is.
        unset = frozenset({"image"} if new.image is None else ())
        nodes = frozenset({"nodes"} if same_nodes(old.nodes, new.nodes) else ())
        difference = changed_inputs(self.kind, old, new, passed_over=unset | nodes)
        changed = difference.changed
        if not old.running:
            changed |= {"running"}
        archives = {image: archive_digest(Path(image)) for image in new.images if is_archive(image)}
        if any(old.image_digests.get(image) != digest for image, digest in archives.items()):
            changed |= {"images"}
        return Difference(changed, difference.replaced)

    async def create(
        self, inputs: KindClusterInputs, operation: Operation
    ) -> tuple[str, KindClusterState]:
        owner = _owner_file(inputs.name)
        nodes = await self._commands.nodes(inputs.name)
        if nodes:
            if text_of(owner) != operation.urn:
                raise BusyError(
                    f"There is a kind cluster {inputs.name} already.",
                    reason="This resource did not create it.",
                    hint=f"Choose another name, remove it with kind delete cluster "
                    f"--name {inputs.name}, or import it: "
                    f"pulumi import {self.kind.token} NAME {inputs.name}",
                )
            # kind cannot continue an interrupted run: create the cluster again.
            operation.show("removing the rest of an interrupted run")
            await self._commands.delete(inputs.name)
        private_folder(owner.parent)
        write_private(owner, operation.urn.encode())
        await self._commands.create(cluster_config(inputs), operation.seconds, operation.show)
        return inputs.name, await self._completed(inputs, None, operation)

    async def read(self, id_: str, state: KindClusterState | None) -> KindClusterState | None:
        nodes = await self._commands.nodes(id_)
        if not nodes:
            return None
        observed = [KindNode(role=node.role) for node in nodes]
        if state is None:
            inputs = KindClusterInputs(name=id_, image=nodes[0].image, nodes=observed)
            digests: dict[str, str] = {}
        else:
            inputs, digests = inputs_of(KindClusterInputs, state), state.image_digests
            if not same_roles(inputs.nodes, observed):
                inputs = inputs.model_copy(update={"nodes": observed})
        running = all(node.running for node in nodes)
        kubeconfig = await self._commands.kubeconfig(id_) if running else _kubeconfig(state)
        uid = await _uid(kubeconfig, state) if running else state.uid if state else ""
        return _state(inputs, kubeconfig, uid, digests, running=running)

    async def update(
        self,
        id_: str,
        old: KindClusterState,
        new: KindClusterInputs,
        operation: Operation,
    ) -> KindClusterState:
        nodes = await self._commands.nodes(id_)
        await self._commands.start(id_, nodes, operation.seconds, operation.show)
        return await self._completed(new, old, operation)

    async def delete(self, id_: str, state: KindClusterState, operation: Operation) -> None:
        del state
        operation.show("removing the containers")
        await self._commands.delete(id_)
        _owner_file(id_).unlink(missing_ok=True)

    async def _completed(
        self,
        inputs: KindClusterInputs,
        before: KindClusterState | None,
        operation: Operation,
    ) -> KindClusterState:
        """Set mirrors and load images with new digests, which kind does not do in one command."""
        digests, mirrors = (before.image_digests, before.registry_mirrors) if before else ({}, {})
        loaded = {image: digests[image] for image in inputs.images if image in digests}
        nodes = await self._commands.nodes(inputs.name)
        kubeconfig = await self._commands.kubeconfig(inputs.name)
        uid = await _uid(kubeconfig, before)
        try:
            for node in nodes:
                await self._set_mirrors(node, mirrors, inputs.registry_mirrors)
            for image in inputs.images:
                digest = await self._digest(image)
                if loaded.get(image) != digest:
                    operation.show(f"loading image {image}")
                    await self._commands.load(inputs.name, image, operation.show)
                    loaded[image] = digest
        except (UserError, asyncio.CancelledError) as error:
            state = _state(inputs, kubeconfig, uid, loaded, running=False)
            raise PartlyCreatedError(inputs.name, state, error) from None
        return _state(inputs, kubeconfig, uid, loaded, running=True)

    async def _set_mirrors(
        self, node: NodeContainer, before: dict[str, str], after: dict[str, str]
    ) -> None:
        for registry in before.keys() - after.keys():
            await self._commands.set_mirror(node, registry, None)
        for registry, mirror in after.items():
            await self._commands.set_mirror(node, registry, mirror)

    async def _digest(self, image: str) -> str:
        if is_archive(image):
            return await asyncio.to_thread(archive_digest, Path(image))
        try:
            return await self._commands.image_id(image)
        except UserError as error:
            raise InvalidInputError(
                f"The container engine has no image {image}.",
                reason=error.reason,
                hint="Build or pull it first, or name the path of an archive.",
            ) from error


def same_nodes(before: list[KindNode], after: list[KindNode]) -> bool:
    """Whether two lists of nodes make the same cluster. An empty one means the default."""
    return _whole(before) == _whole(after)


def same_roles(before: list[KindNode], after: list[KindNode]) -> bool:
    """Whether there are as many nodes of each role."""
    return sorted(node.role for node in before or [KindNode()]) == sorted(
        node.role for node in after
    )


def _whole(nodes: list[KindNode]) -> str:
    return json.dumps([node.model_dump(mode="json") for node in nodes or [KindNode()]])


def _state(
    inputs: KindClusterInputs, kubeconfig: str, uid: str, digests: dict[str, str], *, running: bool
) -> KindClusterState:
    return KindClusterState(
        **inputs.model_dump(by_alias=False),
        uid=uid,
        kubeconfig=kubeconfig,
        image_digests=digests,
        running=running,
    )


async def _uid(kubeconfig: str, state: KindClusterState | None) -> str:
    return await cluster_uid(kubeconfig, *((state.kubeconfig, state.uid) if state else ()))


def _kubeconfig(state: KindClusterState | None) -> str:
    return "" if state is None else state.kubeconfig


def _owner_file(name: str) -> Path:
    """The file that names the Pulumi resource of a kind cluster. kind does not store it."""
    return provider_folder("kind") / name
