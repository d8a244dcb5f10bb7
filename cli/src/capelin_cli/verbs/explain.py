"""The verb that explains why a cluster waits."""

from typing import Annotated

import typer

from capelin_cli.verbs.clusters import Name, add_cluster_verb
from capelin_cli.verbs.options import Environment, ManagementKubeconfig, Namespace, Output
from capelin_cli.verbs.runner import run


def register(app: typer.Typer) -> None:
    """Add this verb to the command."""
    add_cluster_verb(app, "explain", "Explain why a workload cluster waits.", explain)


def explain(
    name: Name,
    *,
    environment: Environment = "",
    kubeconfig: ManagementKubeconfig = None,
    namespace: Namespace = "default",
    output: Output = "text",
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 unless the cluster is ready.")
    ] = False,
) -> None:
    """Explain why a workload cluster waits: from the cluster to the one object that causes it.

    Each cause has the person or program that can end the wait, the evidence, and the next command.
    The verb only reads. It works with every management cluster of Cluster API (--kubeconfig).
    """
    from capelin_cli.clusters.cluster_verbs import ClusterName
    from capelin_cli.explain.command import explain_cluster

    which = ClusterName(name, namespace, environment, kubeconfig)
    is_ready = run(explain_cluster(which, output))
    if exit_code and not is_ready:
        raise typer.Exit(1)
