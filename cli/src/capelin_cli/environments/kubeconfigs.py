"""Files with kubeconfigs, for kubectl and clusterctl. Each has a context of its own name."""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from capelin.api.capi import Cluster
from capelin.api.core import Secret
from capelin.client import Client, safe_kubeconfig
from capelin.errors import MissingError
from capelin_embedded.management import Environment
from capelin_embedded.processes import private_folder, write_private
from rich.console import Console

from capelin_cli.environments.connection import client_of, find_environment, list_clusters
from capelin_cli.environments.user_kubeconfig import merge_contexts


async def kubeconfig_of(name: str, cluster: str | None, namespace: str) -> Path:
    """The file of a kubeconfig: the environment's own, or a workload cluster's."""
    environment = find_environment(name)
    if cluster is not None:
        return await workload_kubeconfig(environment, cluster, namespace)
    if not environment.kubeconfig.exists():
        raise MissingError(
            f"Environment {name} has no API server yet.",
            reason="It was never started completely.",
            hint=f"Continue with capelin up -e {name}.",
        )
    return environment.kubeconfig


async def merge_kubeconfigs(name: str, cluster: str | None, namespace: str) -> None:
    """Put contexts into the user's kubeconfig, and make the requested one current.

    Without a cluster, that is the environment's. The contexts of its clusters come along.
    """
    environment = find_environment(name)
    files = [await kubeconfig_of(name, cluster, namespace)]
    if cluster is None:
        for known in await list_clusters(environment):
            namespace = known.namespace or "default"
            with suppress(MissingError):
                files.append(await workload_kubeconfig(environment, known.name, namespace))
    target, contexts = merge_contexts(environment, files)
    console = Console(highlight=False)
    console.print(f"Contexts in {target}: {', '.join(contexts)}.", soft_wrap=True)
    console.print(f"kubectl uses {contexts[0]} from now on.")


async def workload_kubeconfig(environment: Environment, cluster: str, namespace: str) -> Path:
    """A file with a workload cluster's kubeconfig, with the context `capelin-ENV-CLUSTER`."""
    async with client_of(environment) as client:
        secret = await client.find(Secret, f"{cluster}-kubeconfig", namespace)
        if secret is None:
            await find_cluster(client, cluster, namespace)
            raise MissingError(
                f"Cluster {cluster} has no kubeconfig yet.",
                reason="Its control plane makes it when it is initialized.",
                hint="Wait for it: capelin status --watch.",
            )
    path = private_folder(environment.folder / "kubeconfigs") / f"{namespace}.{cluster}"
    # A user who may write the Secret must not run commands as the user who reads the file.
    context = f"capelin-{environment.name}-{cluster}"
    write_private(path, safe_kubeconfig(secret.data["value"], name=context))
    return path


@contextmanager
def kubeconfig_file(content: str) -> Generator[Path]:
    """A private file for as long as the block lasts, for clients that need kubeconfigs in files."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kubeconfig"
        write_private(path, content.encode())
        yield path


async def find_cluster(client: Client, name: str, namespace: str) -> Cluster:
    """A Cluster by name."""
    found = await client.find(Cluster, name, namespace)
    if found is None:
        raise await missing_cluster(client, name, namespace)
    return found


async def missing_cluster(client: Client, name: str, namespace: str) -> MissingError:
    """The error for a Cluster that does not exist, with those that do."""
    others = ", ".join(cluster.name for cluster in (await client.list(Cluster, namespace)).items)
    return MissingError(
        f"Cluster {name} does not exist in namespace {namespace}.",
        reason=f"Clusters there: {others or 'none'}.",
        hint="Name one of them, or another --namespace or environment.",
    )
