"""The verbs that let a cluster sleep, and wake it."""

import typer

from capelin_cli.verbs.clusters import Name, add_cluster_verb
from capelin_cli.verbs.options import Environment, ManagementKubeconfig, Namespace, Within
from capelin_cli.verbs.runner import run

_INTERRUPTED = "The provider continues: see capelin status."


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    add_cluster_verb(app, "sleep", "Stop a cluster's control plane, and keep its data.", sleep)
    add_cluster_verb(app, "wake", "Start a cluster's control plane that sleeps.", wake)


def sleep(
    name: Name,
    *,
    environment: Environment = "",
    kubeconfig: ManagementKubeconfig = None,
    namespace: Namespace = "default",
    within: Within = 300,
) -> None:
    """Let the control plane of a cluster sleep: no component runs, and its data stays.

    Cluster API neither deletes nor replaces machines meanwhile. Changes wait until it wakes.
    """
    from capelin_cli.clusters.cluster_verbs import ClusterName
    from capelin_cli.clusters.sleep import sleep_cluster

    run(
        sleep_cluster(ClusterName(name, namespace, environment, kubeconfig), within),
        interrupted=_INTERRUPTED,
    )


def wake(
    name: Name,
    *,
    environment: Environment = "",
    kubeconfig: ManagementKubeconfig = None,
    namespace: Namespace = "default",
    within: Within = 600,
) -> None:
    """Wake the control plane of a cluster, and wait until the cluster is ready."""
    from capelin_cli.clusters.cluster_verbs import ClusterName
    from capelin_cli.clusters.sleep import wake_cluster

    run(
        wake_cluster(ClusterName(name, namespace, environment, kubeconfig), within),
        interrupted=_INTERRUPTED,
    )
