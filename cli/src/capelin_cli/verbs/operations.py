"""The verbs of a control plane's operations: backups, recover, rotate, move, sleep, wake."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from capelin_cli.verbs.clusters import add_cluster_verb
from capelin_cli.verbs.options import (
    AnyNamespace,
    Environment,
    Namespace,
    Output,
    Within,
    Yes,
    cluster_of,
    cluster_of_environment,
    given,
)
from capelin_cli.verbs.runner import confirm, run

if TYPE_CHECKING:
    from capelin_cli.environments.connection import ClusterName

_CONTINUES: Final = "The provider continues: see capelin status."

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
    for verb, text, function in (
        ("recover", "Recover a cluster from its only etcd member.", recover),
        ("rotate", "Rotate a cluster's CAs and its service account key.", rotate),
        ("move", "Check whether a cluster can move, and request it.", move),
        ("sleep", "Stop a cluster's control plane, and keep its data.", sleep),
        ("wake", "Start a cluster's control plane that sleeps.", wake),
    ):
        add_cluster_verb(app, verb, text, function)


@given(cluster_of)
def backup(which: "ClusterName", *, within: Within = 600) -> None:
    """Take a backup of a cluster's control plane now, and wait until it exists."""
    from capelin_cli.clusters.backups import take_backup

    run(take_backup(which, within), interrupted="The provider continues: see capelin backups.")


@given(cluster_of)
def restore(
    which: "ClusterName",
    *,
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
    from capelin_cli.clusters.backups import BackupPlace, create_backup_as_of, parse_moment
    from capelin_cli.clusters.copies import begun_copy, copy_of
    from capelin_cli.clusters.restores import (
        is_lost,
        plan_restore,
        read_lost_cluster,
        restore_cluster,
        restore_lost_cluster,
    )

    if at is not None and backup is not None:
        raise typer.BadParameter("--at creates a backup: leave --backup out")
    if as_ is None and key_file is None and (bucket is not None or new_endpoint):
        raise typer.BadParameter("a lost cluster needs its key: add --key-file")
    place = BackupPlace(key_file, bucket, region, ca_file)
    if at is not None:
        moment = parse_moment(at, datetime.now(UTC))
        backup = run(create_backup_as_of(which, place, moment))
    is_copy = as_ is not None
    if is_copy or (key_file is not None and run(is_lost(which))):
        new = replace(which, name=as_ or which.name)
        begun = run(begun_copy(which, new)) if is_copy else None
        created = run(read_lost_cluster(which, place, begun or backup))
        if is_copy:
            created = copy_of(created, new.name)
        source = f"{created.manifest.name} of {which.name}" if is_copy else created.manifest.name
        if not confirm(f"Create cluster {new.name} from backup {source}.", yes=yes):
            raise typer.Exit(1)
        creating = restore_lost_cluster(new, created, within, new_endpoint=new_endpoint or is_copy)
        run(creating, interrupted="Run the same command again: it continues.")
        return
    plan = run(plan_restore(which, backup))
    effect = "All later changes of its objects are lost"
    if not confirm(f"Restore cluster {which.name} from {plan.text}? {effect}.", yes=yes):
        raise typer.Exit(1)
    run(restore_cluster(plan, within), interrupted=_CONTINUES)


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
    from capelin_cli.clusters.restores import create_authorities
    from capelin_cli.environments.connection import ClusterName

    run(create_authorities(ClusterName(name, namespace, environment), backup, key_file))


def list_(
    ctx: typer.Context,
    *,
    environment: Environment = "",
    namespace: AnyNamespace = None,
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


@given(cluster_of)
def verify(
    which: "ClusterName",
    backup: Backup = None,
    *,
    key_file: KeyFile = None,
    bucket: Bucket = None,
    region: Region = "us-east-1",
    ca_file: CAFile = None,
) -> None:
    """Verify a backup: decrypt it, restore it into a throw-away etcd, and count its keys."""
    from capelin_cli.clusters.backups import BackupPlace, verify_stored

    place = BackupPlace(key_file, bucket, region, ca_file)
    run(verify_stored(which, place, backup))


@given(cluster_of)
def prune(
    which: "ClusterName",
    *,
    bucket: Bucket = None,
    region: Region = "us-east-1",
    ca_file: CAFile = None,
    yes: Yes = False,
) -> None:
    """Delete the backups of a cluster that its retention does not keep."""
    from capelin_cli.clusters.backups import BackupPlace, delete_expired, expired_backups

    place = BackupPlace(None, bucket, region, ca_file)
    expired = run(expired_backups(which, place))
    if not expired:
        typer.echo(f"The retention of cluster {which.name} keeps all its backups.")
        return
    names = ", ".join(expired)
    if not confirm(f"Delete {len(expired)} backups of cluster {which.name} ({names})?", yes=yes):
        raise typer.Exit(1)
    typer.echo(f"{run(delete_expired(which, place, expired))} backups deleted.")


@given(cluster_of)
def move(
    which: "ClusterName",
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Only check, and withdraw an earlier request.")
    ] = False,
    within: Within = 60,
) -> None:
    """Check whether a control plane on pods can move, and request the move for an hour.

    Then run clusterctl move. Without a request, it waits and fails.
    """
    from capelin_cli.clusters.operations import move_cluster

    moving = move_cluster(which, within, check_only=check)
    run(moving, interrupted="The request is withdrawn.")


@given(cluster_of_environment)
def recover(
    which: "ClusterName",
    *,
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
    from capelin_cli.clusters.etcd_recovery import recover_cluster

    if not confirm(f"Give up the lost etcd members of cluster {which.name} for good?", yes=yes):
        raise typer.Exit(1)
    interrupted = "Nothing was deleted. Run the same command again to continue."
    run(recover_cluster(which, data, within), interrupted=interrupted)


@given(cluster_of)
def rotate(
    which: "ClusterName",
    *,
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

    from capelin_cli.clusters.operations import Drop, rotate_cluster

    if force and not drop:
        raise InvalidInputError(
            "--force needs --drop.",
            reason="Only the end of a rotation waits for clients.",
            hint=f"Type {which.command('rotate', '--drop', '--force')}.",
        )
    effect = "Copies of its kubeconfig from before the rotation become invalid"
    if force:
        effect = "Nodes, pods and people that still need them lose access"
    question = f"Drop the old CAs and keys of cluster {which.name}? {effect}."
    if drop and not confirm(question, yes=yes):
        raise typer.Exit(1)
    how = Drop(force) if drop else None
    run(rotate_cluster(which, how, within), interrupted=_CONTINUES)


@given(cluster_of)
def sleep(which: "ClusterName", *, within: Within = 300) -> None:
    """Let the control plane of a cluster sleep: no component runs, and its data stays.

    Cluster API neither deletes nor replaces machines meanwhile. Changes wait until it wakes.
    """
    from capelin_cli.clusters.operations import sleep_cluster

    run(sleep_cluster(which, within), interrupted=_CONTINUES)


@given(cluster_of)
def wake(which: "ClusterName", *, within: Within = 600) -> None:
    """Wake the control plane of a cluster, and wait until the cluster is ready."""
    from capelin_cli.clusters.operations import wake_cluster

    run(wake_cluster(which, within), interrupted=_CONTINUES)
