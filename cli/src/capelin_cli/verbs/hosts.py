"""The verbs of hosts: import, check, list, power-cycle."""

from pathlib import Path
from typing import Annotated

import typer

from capelin_cli.verbs.options import AnyNamespace, Environment, Output, group
from capelin_cli.verbs.runner import run

HostNamespace = Annotated[
    str, typer.Option("--namespace", "-n", help="The namespace of the hosts.")
]


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    hosts = group(app, "hosts", "Import, check, list and power cycle machines that become nodes.")
    hosts.command("import")(import_)
    hosts.command("check")(check)
    hosts.command("list")(list_)
    hosts.command("power-cycle")(power_cycle)


def import_(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="A YAML list or a CSV table with name, address, and optionally port, user, "
            "credentials, hostKey, hostAuthority, failureDomain, labels and maintenance.",
            show_default=False,
        ),
    ],
    *,
    environment: Environment = "",
    namespace: HostNamespace = "default",
    credentials: Annotated[
        str, typer.Option(help="Secret with the private key, for hosts without their own.")
    ] = "capelin-hosts",
    private_key: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Private key without a passphrase, to store in that Secret.",
            show_default=False,
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(help="User that logs in, for hosts without their own.", show_default="root"),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", "-l", help="Label of all hosts, as key=value.", show_default=False),
    ] = None,
    trust_on_first_use: Annotated[
        bool,
        typer.Option(help="Trust the key that a host without hostKey shows at the first contact."),
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Only validate the file.")] = False,
) -> None:
    """Register existing machines as hosts, from a file.

    A second import updates the fields that the file has. It changes no claim, and deletes no host.
    """
    from capelin.errors import InvalidInputError

    from capelin_cli.hosts.host_file import HostDefaults, read_labels
    from capelin_cli.hosts.verbs import import_hosts

    try:
        labels = read_labels(";".join(label or []))
    except ValueError as error:
        raise InvalidInputError("A label is invalid.", reason=f"{error}.") from None
    defaults = HostDefaults(
        namespace=namespace,
        credentials=credentials,
        user=user,
        trust_on_first_use=trust_on_first_use,
        labels=labels,
    )
    run(import_hosts(environment, file, defaults, private_key, dry_run=dry_run))


def check(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Hosts to check. Default: all of the namespace.", show_default=False),
    ] = None,
    *,
    environment: Environment = "",
    namespace: HostNamespace = "default",
    kubernetes_version: Annotated[
        str | None,
        typer.Option(help="Version that the hosts should get.", show_default=False),
    ] = None,
    output: Output = "text",
) -> None:
    """Connect to hosts from here, and explain why they cannot become nodes.

    It checks SSH, remains of a node, systemd, the container runtime, kubelet and kubeadm, swap,
    kernel modules, ports, disk, memory and the clock. It changes nothing on the hosts.
    """
    from capelin_cli.hosts.verbs import check_hosts

    if not run(check_hosts(environment, namespace, names or (), kubernetes_version, output)):
        raise typer.Exit(1)


def list_(
    *,
    environment: Environment = "",
    namespace: AnyNamespace = None,
    output: Output = "text",
) -> None:
    """List the hosts with their phases, machines and problems."""
    from capelin_cli.hosts.verbs import list_hosts

    run(list_hosts(environment, namespace, output))


def power_cycle(
    names: Annotated[list[str], typer.Argument(help="Hosts to power cycle.", show_default=False)],
    *,
    environment: Environment = "",
    namespace: HostNamespace = "default",
    in_use: Annotated[bool, typer.Option(help="Include hosts that a machine uses.")] = False,
) -> None:
    """Have the provider switch hosts off and on, by the method in their spec.power."""
    from capelin_cli.hosts.verbs import power_cycle_hosts

    run(power_cycle_hosts(environment, namespace, names, in_use=in_use))
