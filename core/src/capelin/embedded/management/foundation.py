"""What an environment stands on: an API server of its own, or one that was there before."""

from collections.abc import Iterable
from dataclasses import dataclass

from capelin.api import Unstructured
from capelin.client import Client, Config, Server
from capelin.embedded import apiserver
from capelin.embedded.apiserver import ApiServer
from capelin.embedded.binaries import Binaries
from capelin.embedded.management.environment import Environment, Settings
from capelin.embedded.management.installation import live
from capelin.embedded.management.manifests import mark_of, marked
from capelin.embedded.processes import Declared


@dataclass(frozen=True, slots=True)
class Foundation:
    """The API server of an environment, whoever runs it."""

    server: Server
    """Where it answers, and how to know it."""
    address: str
    """Where it reaches what runs on this machine."""
    processes: tuple[Declared, ...] = ()
    """Those that it consists of, where it is our own."""
    mark: str | None = None
    """What is put into it is labelled with, where others put things there as well."""

    async def to_install(
        self, client: Client, manifests: Iterable[Unstructured]
    ) -> list[Unstructured]:
        """What of an installation's manifests to send, so that all of ours is found again.

        A namespace that was there before is used as it is, and stays when we go.
        """
        if self.mark is None:
            return list(manifests)
        wanted = list(manifests)
        namespaces = [each for each in wanted if each["kind"] == "Namespace"]
        others = {
            each["metadata"]["name"]
            for each in await live(client, namespaces)
            if mark_of(each) != self.mark
        }
        return [
            marked(each, self.mark)
            for each in wanted
            if each["kind"] != "Namespace" or each["metadata"]["name"] not in others
        ]


async def foundation(
    environment: Environment, settings: Settings, binaries: Binaries
) -> Foundation:
    """What an environment with these settings stands on; nothing is started yet."""
    if settings.existing is not None:
        server = Config.from_kubeconfig(environment.kubeconfig).server
        return Foundation(server, settings.existing.address, mark=settings.existing.mark)
    own = await ApiServer.prepare(
        environment.folder,
        apiserver.Settings(version=settings.kubernetes_version, durable=settings.durable),
        binaries=binaries,
    )
    server = Config.from_kubeconfig(own.kubeconfig).server
    return Foundation(server, own.place.address, own.declared)
