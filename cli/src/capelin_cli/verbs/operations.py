"""The verbs of a control plane's operations: recover, rotate, move, sleep, wake."""

from pathlib import Path
from typing import Annotated, Final

import typer

from capelin_cli.verbs.clusters import Name, add_cluster_verb
from capelin_cli.verbs.options import Environment, ManagementKubeconfig, Namespace, Within, Yes
from capelin_cli.verbs.runner import confirm, run

_CONTINUES: Final = "The provider continues: see capelin status."


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    for verb, text, function in (
        ("recover", "Recover a cluster from its only etcd member.", recover),
        ("rotate", "Rotate a cluster's CAs and its service account key.", rotate),
        ("move", "Check whether a cluster can move, and request it.", move),
        ("sleep", "Stop a cluster's control plane, and keep its data.", sleep),
        ("wake", "Start a cluster's control plane that sleeps.", wake),
    ):
        add_cluster_verb(app, verb, text, function)


def move(
    name: Name,
    *,
    environment: Environment = "",
    kubeconfig: ManagementKubeconfig = None,
    namespace: Namespace = "default",
    check: Annotated[
        bool, typer.Option("--check", help="Only check, and withdraw an earlier request.")
    ] = False,
    within: Within = 60,
) -> None:
    """Check whether a control plane on pods can move, and request the move for an hour.

    Then run clusterctl move. Without a request, it waits and fails.
    """
    from capelin_cli.clusters.cluster_verbs import ClusterName
    from capelin_cli.clusters.moves import move_cluster

    which = ClusterName(name, namespace, environment, kubeconfig)
    run(
        move_cluster(which, within, check_only=check),
        interrupted="The request is withdrawn.",
    )


def recover(
    name: Name,
    *,
    environment: Environment = "",
    namespace: Namespace = "default",
    data: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            resolve_path=True,
            help="Data of an etcd member to continue from, if no member has any left.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    within: Within = 600,
) -> None:
    """Recover a cluster that has lost a majority of its etcd members for good.

    Its etcd continues from the one remaining member. Writes that only the lost members had are
    lost. It refuses if it could save more, and sets data aside instead of deleting it.
    """
    from capelin_cli.clusters.cluster_verbs import ClusterName
    from capelin_cli.clusters.etcd_recovery import recover_cluster

    if not confirm(f"Give up the lost etcd members of cluster {name} for good?", yes=yes):
        raise typer.Exit(1)
    which = ClusterName(name, namespace, environment)
    interrupted = "Nothing was deleted. Run the same command again to continue."
    run(recover_cluster(which, data, within), interrupted=interrupted)


def rotate(
    name: Name,
    *,
    environment: Environment = "",
    kubeconfig: ManagementKubeconfig = None,
    namespace: Namespace = "default",
    drop: Annotated[
        bool,
        typer.Option("--drop", help="Also drop the old CAs and keys, when no client needs them."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --drop: drop them even if clients need them.")
    ] = False,
    yes: Yes = False,
    within: Within = 600,
) -> None:
    """Rotate the CAs and the service account key of a cluster, or continue a rotation.

    Requests continue, and machines stay. The old CAs and keys stay trusted until you drop them.
    The command prints the clients that need them.
    """
    from capelin.errors import InvalidInputError

    from capelin_cli.clusters.cluster_verbs import ClusterName
    from capelin_cli.clusters.rotation import Drop, rotate_cluster

    which = ClusterName(name, namespace, environment, kubeconfig)
    if force and not drop:
        raise InvalidInputError(
            "--force needs --drop.",
            reason="Only the end of a rotation waits for clients.",
            hint=f"Type {which.command('rotate', '--drop', '--force')}.",
        )
    effect = "Copies of its kubeconfig from before the rotation become invalid"
    if force:
        effect = "Nodes, pods and people that still need them lose access"
    question = f"Drop the old CAs and keys of cluster {name}? {effect}."
    if drop and not confirm(question, yes=yes):
        raise typer.Exit(1)
    run(
        rotate_cluster(which, Drop(force) if drop else None, within),
        interrupted=_CONTINUES,
    )


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
        interrupted=_CONTINUES,
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
        interrupted=_CONTINUES,
    )
