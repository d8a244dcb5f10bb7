"""The verbs of environments: up, dev, status, kubeconfig, logs, stop, start, restart, down."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from capelin_cli.terminal.text import environment_option
from capelin_cli.verbs import completion
from capelin_cli.verbs.options import (
    AnyEnvironment,
    Environment,
    IdleEnvironment,
    NamedEnvironment,
    Namespace,
    Output,
    Within,
    WithinWithoutBuilds,
    Yes,
)
from capelin_cli.verbs.runner import confirm, run

if TYPE_CHECKING:
    from capelin_cli.environments.kubeconfigs import Access

ManagementOnly = Annotated[bool, typer.Option("--management-only", help="Create no demo cluster.")]
More = Annotated[
    str | None,
    typer.Option(
        "--with",
        metavar="NAMES",
        help="More providers, separated by commas: kubeadm-bootstrap, kubeadm, dev, lifecycle.",
        autocompletion=completion.providers,
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    for verb in (up, dev, status, kubeconfig, logs, stop, start, restart, down):
        app.command()(verb)


def up(
    ctx: typer.Context,
    *,
    environment: NamedEnvironment = "default",
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help="A file that describes the environment and its clusters, instead of options. Its "
            "name: wins over CAPELIN_ENVIRONMENT.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    kubernetes_version: Annotated[
        str | None,
        typer.Option(
            help="The Kubernetes version of the clusters, such as v1.36.3, 1.36 or latest (see "
            "capelin versions). An existing API server keeps its own.",
            autocompletion=completion.versions,
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0, max=1000, help="Workers of a new demo cluster. Default: 3.", show_default=False
        ),
    ] = None,
    control_plane_replicas: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=9,
            help="Control plane replicas of a new demo cluster. Default: 1.",
            show_default=False,
        ),
    ] = None,
    management_only: ManagementOnly = False,
    prefetch: Annotated[
        bool | None,
        typer.Option(
            "--prefetch/--no-prefetch",
            envvar="CAPELIN_PREFETCH",
            help="Get the programs of the next Kubernetes version in the background, at the lowest "
            "priority, for capelin upgrade. Default: the choice of the last time, or else yes, "
            "except in CI.",
            show_default=False,
        ),
    ] = None,
    with_: More = None,
    machines: Annotated[
        Literal["containers", "simulated", "auto"],
        typer.Option(
            help="Machines of a new demo cluster: containers of Docker or Podman, which run pods, "
            "simulated ones, or containers if that is possible here.",
        ),
    ] = "simulated",
    machine_image: Annotated[
        str | None,
        typer.Option(
            envvar="CAPELIN_MACHINE_IMAGE",
            help="The image of machines that are containers: a node image of kind. Several, with "
            "commas between them, are for upgrades: a machine gets the one tagged by its version. "
            "Default: kindest/node of the newest version that Capelin provides, by digest.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        Literal["process", "kind", "existing"] | None,
        typer.Option(
            help="Where the management cluster's API server runs: as a process on this machine, "
            "which is the default, in a kind cluster made for it, or in an existing cluster.",
            show_default=False,
        ),
    ] = None,
    node_image: Annotated[
        str | None,
        typer.Option(
            help="The image of kind's nodes. Default: kind's own, which it names by digest. Give a "
            "digest too, for example NAME:TAG@sha256:..., so that the image cannot change.",
            show_default=False,
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            help="The kubeconfig of the existing API server. Default: the one that the environment "
            "has already, or kubectl's.",
            show_default=False,
        ),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(help="The context in it. Default: its current one.", show_default=False),
    ] = None,
    backup_folder: Annotated[
        Path | None,
        typer.Option(
            help="An existing folder for backups of control planes. Default: the one that the "
            "environment has already, or none.",
            exists=True,
            file_okay=False,
            resolve_path=True,
            show_default=False,
        ),
    ] = None,
    within: WithinWithoutBuilds = 900,
    timings: Annotated[
        bool,
        typer.Option("--timings", help="Print how long each stage took, and why it waited."),
    ] = False,
    output: Output = "text",
) -> None:
    """Bring up everything, with a demo cluster.

    A management cluster and, in it, a workload cluster that is Available with Ready nodes. The
    control plane is real. The nodes are simulated, and no container runs, without --machines.

    Safe to run again: it keeps everything that exists, and starts whatever is missing or was
    killed. With the target kind or existing, it starts no API server. Everything else still runs
    on this machine. capelin down removes the kind cluster again.

    With -o json or yaml, the timings of all stages are printed as data, and the progress goes to
    the standard error.
    """
    from capelin_embedded.management import UpRequest

    from capelin_cli.clusters.topology import ClusterOptions
    from capelin_cli.clusters.up import UpOptions, bring_up
    from capelin_cli.environments.kind_target import KindOptions

    if machines != "simulated" and (management_only or file is not None):
        raise typer.BadParameter("--machines is for the demo cluster")
    if node_image is not None and target != "kind":
        raise typer.BadParameter("--node-image is for --target kind")
    if target == "kind" and (kubeconfig is not None or context is not None):
        raise typer.BadParameter("--kubeconfig and --context are for --target existing")
    if file is not None:
        from capelin_cli.clusters.environment_file import NamedBy, options_from

        given = (kubernetes_version, workers, control_plane_replicas, with_, target)
        if management_only or any(option is not None for option in given):
            raise typer.BadParameter("--file replaces the other options: leave them out")
        # By its name: Typer has a copy of Click, and does not export this enum.
        source = ctx.get_parameter_source("environment")
        given_by = "" if source is None else source.name
        named = NamedBy(
            option=environment if given_by == "COMMANDLINE" else None,
            variable=environment if given_by == "ENVIRONMENT" else None,
        )
        options = options_from(file, named, within=within)
        request = replace(options.request, backup_folder=backup_folder)
        options = replace(options, request=request)
        if named.variable not in {None, options.name}:
            typer.echo(
                f"CAPELIN_ENVIRONMENT names {named.variable}, but {file} describes environment "
                f"{options.name}, which comes up now.",
                err=True,
            )
    else:
        request = UpRequest(
            kubernetes_version=kubernetes_version,
            providers=_names(with_),
            target=None if target == "kind" else target,
            kubeconfig=kubeconfig,
            context=context,
            backup_folder=backup_folder,
        )
        new = ClusterOptions(workers=workers, control_plane_replicas=control_plane_replicas)
        demo = None if management_only else new
        kind = KindOptions(node_image) if target == "kind" else None
        options = UpOptions(
            environment,
            request,
            demo,
            within=within,
            machines=machines,
            machine_image=machine_image,
            kind=kind,
        )
    request = replace(options.request, prefetch=prefetch)
    options = replace(options, request=request, timings=timings, output=output)
    again = f"-f {shlex.quote(str(file))}" if file is not None else f"-e {options.name}"
    again += " --management-only" if management_only else ""
    run(
        bring_up(options),
        interrupted=f"Continue with capelin up {again}, or remove it with capelin down -e "
        f"{options.name}.",
    )


def dev(
    *,
    environment: NamedEnvironment = "default",
    management_only: ManagementOnly = False,
    with_: More = None,
    within: WithinWithoutBuilds = 900,
) -> None:
    """Bring up everything, and restart providers whenever their code changes.

    For authors of providers and extensions: save a file, and seconds later the environment runs it,
    with its kinds and permissions. Ctrl-C ends only the watching. The environment keeps running.
    """
    from capelin_embedded.management import UpRequest

    from capelin_cli.clusters.topology import ClusterOptions
    from capelin_cli.clusters.up import UpOptions, develop

    demo = None if management_only else ClusterOptions()
    options = UpOptions(environment, UpRequest(providers=_names(with_)), demo, within=within)
    run(
        develop(options),
        interrupted=f"The environment keeps running. Remove it with capelin down -e {environment}.",
    )


def _names(text: str | None) -> tuple[str, ...]:
    names = tuple(part.strip() for part in (text or "").split(",")) if text is not None else ()
    if not all(names):
        raise typer.BadParameter(f"--with {text!r} has an empty name between its commas")
    return names


def status(
    *,
    environment: AnyEnvironment = None,
    output: Output = "text",
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep showing it until Ctrl-C.")
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 unless everything is as it should be.")
    ] = False,
) -> None:
    """Show environments and their clusters.

    It lists each process, and each cluster as a tree of objects with their reasons to wait.
    """
    from capelin_cli.environments.connection import ensure_supervised
    from capelin_cli.status.overview import show

    if watch and output in {"json", "yaml"}:
        raise typer.BadParameter("--watch does not work with -o json or -o yaml")
    ensure_supervised(environment)
    good = run(show(environment, output=output, watch=watch))
    if exit_code and not good:
        raise typer.Exit(1)


def kubeconfig(
    cluster: Annotated[
        str | None,
        typer.Argument(
            help="A workload cluster. Without it: the management cluster.",
            autocompletion=completion.clusters,
            show_default=False,
        ),
    ] = None,
    *,
    environment: Environment = "",
    namespace: Namespace = "default",
    raw: Annotated[
        bool, typer.Option("--raw", help="Print the content instead of the path.")
    ] = False,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            help="Put the context into your own kubeconfig and make it current. capelin down "
            "removes it again. Without a cluster, the contexts of all clusters are added.",
        ),
    ] = False,
    user: Annotated[
        str | None,
        typer.Option(
            help="Make a kubeconfig for this user of the cluster, instead of the administrator's.",
            show_default=False,
        ),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", help="A group of the user. Repeatable.", show_default=False),
    ] = None,
    validity: Annotated[
        str, typer.Option("--for", help="How long the user's certificate is valid.")
    ] = "8h",
) -> None:
    """Print the path of a kubeconfig, or merge its context into your own.

    For example: export KUBECONFIG=$(capelin kubeconfig)

    For another person: capelin kubeconfig demo --user alice --group dev --for 8h --raw
    """
    from capelin_cli.environments.kubeconfigs import (
        kubeconfig_of,
        merge_kubeconfigs,
        user_kubeconfig_of,
    )

    if merge and (raw or user is not None):
        raise typer.BadParameter("--merge excludes --raw and --user")
    if groups and user is None:
        raise typer.BadParameter("--group needs --user")
    if merge:
        run(merge_kubeconfigs(environment, cluster, namespace))
        return
    if user is None:
        path = run(kubeconfig_of(environment, cluster, namespace))
    else:
        if cluster is None:
            raise typer.BadParameter("--user needs the name of a workload cluster")
        access = _access(user, groups or [], validity)
        path, end = run(user_kubeconfig_of(environment, cluster, namespace, access))
        typer.echo(f"The certificate of {user} is valid until {end:%Y-%m-%d %H:%M} UTC.", err=True)
    typer.echo(path.read_text() if raw else str(path), nl=not raw)


def _access(user: str, groups: list[str], validity: str) -> "Access":
    from capelin.api import parse_duration

    from capelin_cli.environments.kubeconfigs import Access

    try:
        return Access(user, tuple(groups), parse_duration(validity))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--for") from None


Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CLUSTER] [COMPONENT]",
        help="A component as capelin status names it, or a cluster, with one of its components.",
        autocompletion=completion.clusters_and_components,
        show_default=False,
    ),
]


def logs(
    names: Names = None,
    *,
    environment: Environment = "",
    namespace: Namespace = "default",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How many of the last lines of each log. Default: 20, or all with --since.",
            show_default=False,
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Only lines that are not older, such as 90s, 10m or 2h.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print logs: of the environment, of one component, or of a cluster's control plane.

    Several logs are printed without traces of slow requests, and without logs of components that
    ended more than ten minutes ago. Name a component for its whole log.
    """
    from capelin_cli.environments.logs import LogQuery, begin_of, print_logs

    if len(names or []) > 2:
        raise typer.BadParameter("name a cluster and a component at most")
    try:
        begin = None if since is None else begin_of(since)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from error
    if lines is None and begin is None:
        lines = 20
    query = LogQuery(environment, tuple(names or ()), namespace, lines, begin, follow)
    run(print_logs(query))


def stop(*, environment: IdleEnvironment = "") -> None:
    """Stop an environment and its clusters. capelin start continues with them."""
    from capelin_cli.environments.lifetime import stop as stop_environment

    again = f"capelin stop{environment_option(environment)}"
    run(stop_environment(environment), interrupted=f"Continue with {again}.")


def start(*, environment: IdleEnvironment = "", within: WithinWithoutBuilds = 900) -> None:
    """Start an environment that was stopped, and wait until its clusters are as they were."""
    from capelin_cli.clusters.up import start as start_environment

    again = f"capelin start{environment_option(environment)}"
    run(start_environment(environment, within=within), interrupted=f"Continue with {again}.")


def restart(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[CLUSTER] COMPONENT",
            help="A component as capelin status names it, or one of a cluster's.",
            autocompletion=completion.clusters_and_components,
            show_default=False,
        ),
    ],
    *,
    environment: Environment = "",
    namespace: Namespace = "default",
    within: Within = 120,
) -> None:
    """Restart one process, and wait until it runs again."""
    from capelin_cli.environments.lifetime import restart as restart_component

    if len(names) > 2:
        raise typer.BadParameter("name a cluster and a component at most")
    run(restart_component(environment, tuple(names), namespace, within=within))


def down(
    *,
    environment: NamedEnvironment = "default",
    everything: Annotated[bool, typer.Option("--all", help="Remove every environment.")] = False,
    yes: Yes = False,
) -> None:
    """Stop an environment and remove all of it.

    This removes its workload clusters and all data. It asks first if clusters exist. An existing
    API server stays, without the objects that capelin up created in it.
    """
    from capelin_cli.environments.lifetime import take_down

    again = "capelin down --all" if everything else f"capelin down{environment_option(environment)}"
    removed = run(
        take_down(None if everything else environment, lambda text: confirm(text, yes=yes)),
        interrupted=f"Continue with {again}.",
    )
    if not removed:
        raise typer.Exit(1)
