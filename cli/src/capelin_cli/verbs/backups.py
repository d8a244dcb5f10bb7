"""The verbs of backups: take, list, verify, prune, restore."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from capelin_cli.verbs.clusters import Name, add_cluster_verb
from capelin_cli.verbs.options import (
    Environment,
    ManagementKubeconfig,
    Namespace,
    Output,
    Within,
    Yes,
)
from capelin_cli.verbs.runner import confirm, run

Backup = Annotated[
    str | None,
    typer.Argument(help="The backup's name. Default: the newest one.", show_default=False),
]


KeyFile = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="The key of the backups, if the cluster or its Secret does not exist any more.",
        show_default=False,
    ),
]
Bucket = Annotated[
    str | None,
    typer.Option(
        help="URL of the bucket with the backups of a lost cluster, such as"
        " https://s3.example.com/my-backups/capelin, with its access key in AWS_ACCESS_KEY_ID and"
        " AWS_SECRET_ACCESS_KEY. Default: the destination of the cluster's backups, or the"
        " environment's folder.",
        show_default=False,
    ),
]
Region = Annotated[str, typer.Option(help="Region of the bucket.")]
CAFile = Annotated[
    Path | None,
    typer.Option(
        exists=True, dir_okay=False, help="CA of the bucket's server.", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    add_cluster_verb(app, "backup", "Back up a cluster's control plane.", backup)
    verb = add_cluster_verb(app, "restore", "Restore a cluster's control plane.", restore)
    verb.command("authorities")(restore_authorities)
    added = typer.Typer(help="List, verify and prune backups.", rich_markup_mode=None)
    app.add_typer(added, name="backups")
    added.callback(invoke_without_command=True)(list_)
    added.command("verify")(verify)
    added.command("prune")(prune)


def backup(
    name: Name,
    *,
    environment: Environment = "",
    kubeconfig: ManagementKubeconfig = None,
    namespace: Namespace = "default",
    within: Within = 600,
) -> None:
    """Take a backup of a cluster's control plane now, and wait until it exists."""
    from capelin_cli.clusters.backups import take_backup
    from capelin_cli.clusters.cluster_verbs import ClusterName

    which = ClusterName(name, namespace, environment, kubeconfig)
    run(take_backup(which, within), interrupted="The provider continues: see capelin backups.")


def restore(
    name: Name,
    *,
    environment: Environment = "",
    kubeconfig: ManagementKubeconfig = None,
    namespace: Namespace = "default",
    backup: Annotated[
        str | None,
        typer.Option(help="The backup's name. Default: the newest one.", show_default=False),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            help="Restore the data as of this moment, such as 2026-01-31T03:00:00Z, or with all"
            " archived changes: latest. The backups need continuous: true.",
            show_default=False,
        ),
    ] = None,
    as_: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NEW",
            help="Create a new cluster of this name, and copy the data of the backup to it.",
            show_default=False,
        ),
    ] = None,
    key_file: KeyFile = None,
    bucket: Bucket = None,
    region: Region = "us-east-1",
    ca_file: CAFile = None,
    new_endpoint: Annotated[
        bool,
        typer.Option(
            "--new-endpoint",
            help="Let the backend choose another address for a lost cluster. Its kubeconfigs and"
            " machines lose their connection.",
        ),
    ] = False,
    yes: Yes = False,
    within: Within = 600,
) -> None:
    """Restore a cluster from a backup: in place, under another name, or after its loss.

    In place, endpoint, CAs and machines stay. All later changes of the cluster's objects are lost.
    The API does not serve for some seconds.

    If the cluster does not exist any more, name the key of its backups. The command creates its
    CAs, its objects of Cluster API and its data again. Simulated and replaceable machines follow.

    With --at, the command first creates a backup of that moment from the archived changes.

    With --as, the cluster stays as it is. The new one has a copy of its objects, an endpoint and
    CAs of its own, and no workers.
    """
    from capelin_cli.clusters.backup_maintenance import create_backup_as_of, parse_moment
    from capelin_cli.clusters.backup_places import BackupPlace
    from capelin_cli.clusters.cluster_verbs import ClusterName
    from capelin_cli.clusters.copies import begun_copy, copy_of
    from capelin_cli.clusters.lost_clusters import is_lost, read_lost_cluster
    from capelin_cli.clusters.restores import (
        plan_restore,
        restore_cluster,
        restore_lost_cluster,
    )

    if at is not None and backup is not None:
        raise typer.BadParameter("--at creates a backup: leave --backup out")
    if as_ is None and key_file is None and (bucket is not None or new_endpoint):
        raise typer.BadParameter("a lost cluster needs its key: add --key-file")
    which = ClusterName(name, namespace, environment, kubeconfig)
    interrupted = "The provider continues: see capelin status."
    place = BackupPlace(key_file, bucket, region, ca_file)
    if at is not None:
        moment = parse_moment(at, datetime.now(UTC))
        backup = run(create_backup_as_of(which, place, moment))
    if as_ is not None:
        new = ClusterName(as_, namespace, environment, kubeconfig)
        begun = run(begun_copy(which, new))
        copy = copy_of(run(read_lost_cluster(which, place, begun or backup)), as_)
        if not confirm(
            f"Create cluster {as_} from backup {copy.manifest.name} of {name}.", yes=yes
        ):
            raise typer.Exit(1)
        creating = restore_lost_cluster(new, copy, within, new_endpoint=True)
        run(creating, interrupted="Run the same command again: it continues.")
        return
    if key_file is not None and run(is_lost(which)):
        lost = run(read_lost_cluster(which, place, backup))
        if not confirm(f"Create cluster {name} from backup {lost.manifest.name}.", yes=yes):
            raise typer.Exit(1)
        creating = restore_lost_cluster(which, lost, within, new_endpoint=new_endpoint)
        run(creating, interrupted="Run the same command again: it continues.")
        return
    plan = run(plan_restore(which, backup))
    question = f"Restore cluster {name} from {plan.text}? All later changes of its objects are lost"
    if not confirm(f"{question}.", yes=yes):
        raise typer.Exit(1)
    run(restore_cluster(plan, within), interrupted=interrupted)


def restore_authorities(
    name: Annotated[str, typer.Argument(help="The lost cluster's name.", show_default=False)],
    backup: Backup = None,
    *,
    key_file: Annotated[
        Path,
        typer.Option(
            exists=True, dir_okay=False, help="The key of the backups.", show_default=False
        ),
    ],
    environment: Environment = "",
    namespace: Namespace = "default",
) -> None:
    """Create the Secrets of a lost cluster's CAs and keys from a backup.

    Do this in a new environment before you create the cluster. The new control plane then has the
    CAs and the address of the lost one, and capelin restore cluster can restore its data.
    """
    from capelin_cli.clusters.cluster_verbs import ClusterName
    from capelin_cli.clusters.restores import create_authorities

    run(create_authorities(ClusterName(name, namespace, environment), backup, key_file))


def list_(
    ctx: typer.Context,
    *,
    environment: Environment = "",
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Show this namespace only.", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", "-c", help="Show this cluster only.", show_default=False),
    ] = None,
    output: Output = "text",
) -> None:
    """List the backups of all clusters, also of deleted ones. Verify and prune them."""
    if ctx.invoked_subcommand is not None:
        return
    from capelin_cli.clusters.backups import show_backups

    show_backups(environment, namespace, cluster, output)


def verify(
    name: Name,
    backup: Backup = None,
    *,
    environment: Environment = "",
    kubeconfig: ManagementKubeconfig = None,
    namespace: Namespace = "default",
    key_file: KeyFile = None,
    bucket: Bucket = None,
    region: Region = "us-east-1",
    ca_file: CAFile = None,
) -> None:
    """Verify a backup: decrypt it, restore it into a throw-away etcd, and count its keys."""
    from capelin_cli.clusters.backup_maintenance import verify_stored
    from capelin_cli.clusters.backup_places import BackupPlace
    from capelin_cli.clusters.cluster_verbs import ClusterName

    place = BackupPlace(key_file, bucket, region, ca_file)
    run(verify_stored(ClusterName(name, namespace, environment, kubeconfig), place, backup))


def prune(
    name: Name,
    *,
    environment: Environment = "",
    kubeconfig: ManagementKubeconfig = None,
    namespace: Namespace = "default",
    bucket: Bucket = None,
    region: Region = "us-east-1",
    ca_file: CAFile = None,
    yes: Yes = False,
) -> None:
    """Delete the backups of a cluster that its retention does not keep."""
    from capelin_cli.clusters.backup_maintenance import delete_expired, expired_backups
    from capelin_cli.clusters.backup_places import BackupPlace
    from capelin_cli.clusters.cluster_verbs import ClusterName

    which = ClusterName(name, namespace, environment, kubeconfig)
    place = BackupPlace(None, bucket, region, ca_file)
    expired = run(expired_backups(which, place))
    if not expired:
        typer.echo(f"The retention of cluster {name} keeps all its backups.")
        return
    names = ", ".join(expired)
    if not confirm(f"Delete {len(expired)} backups of cluster {name} ({names})?", yes=yes):
        raise typer.Exit(1)
    typer.echo(f"{run(delete_expired(which, place, expired))} backups deleted.")
