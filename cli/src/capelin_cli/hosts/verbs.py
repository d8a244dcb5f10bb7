"""The verbs of hosts: import, check, list, power-cycle."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer
from capelin.api import ObjectMeta
from capelin.api.core import Secret
from capelin.client import Client, Conflict, Invalid
from capelin.contract import READY, find_condition
from capelin.errors import InvalidInputError, MissingError
from capelin.provider import Blocked
from capelin_machine_pool.bootstrap import HostState, TransportError, observe
from capelin_machine_pool.bootstrap.ssh import read_host_key
from capelin_machine_pool.hosts.api import POWER_CYCLE_ANNOTATION, PRIVATE_KEY, CapelinHost
from capelin_machine_pool.hosts.connections import ssh_target
from capelin_machine_pool.hosts.facts import HostFacts, observe_facts, problems
from capelin_machine_pool.hosts.visits import Slots

from capelin_cli.environments.connection import client_of, find_environment
from capelin_cli.hosts.host_file import HostDefaults, read_host_file
from capelin_cli.terminal.tables import Column, Format, print_list

_MANAGER: Final = "capelin-hosts"
_KEY_TYPE: Final = "kubernetes.io/ssh-auth"


async def import_hosts(
    environment: str, path: Path, defaults: HostDefaults, private_key: Path | None, *, dry_run: bool
) -> None:
    """Create or update the hosts of a file, all or none if one is invalid.

    It changes only fields that the file has, and takes none that another manager has set.
    """
    hosts = read_host_file(path, defaults)
    async with client_of(find_environment(environment)) as client:
        for dry in (True, False):
            for host in hosts:
                try:
                    await client.apply(host, manager=_MANAGER, force=False, dry_run=dry)
                except Invalid as error:
                    reason = f"{host.name}: {error.message}."
                    hint = "Correct the file. No host was changed."
                    raise InvalidInputError(
                        "The API server rejects a host.", reason=reason, hint=hint
                    ) from error
                except Conflict as error:
                    reason = f"{host.name}: {error.message}."
                    hint = "Remove the field from the file, or have its owner give it up."
                    raise InvalidInputError(
                        "A field of a host has another owner.", reason=reason, hint=hint
                    ) from error
            if dry_run:
                typer.echo(f"{len(hosts)} hosts are valid. Nothing was changed.")
                return
            if dry and private_key is not None:
                await client.apply(_secret(defaults, private_key), manager=_MANAGER)
    typer.echo(f"{len(hosts)} hosts imported. See capelin hosts list.")


def _secret(defaults: HostDefaults, private_key: Path) -> Secret:
    content = private_key.read_bytes()
    metadata = ObjectMeta(name=defaults.credentials, namespace=defaults.namespace)
    return Secret(metadata=metadata, type=_KEY_TYPE, data={PRIVATE_KEY: content})


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result of a check."""

    host: CapelinHost
    problems: Sequence[str] = ()
    facts: HostFacts | None = None

    @property
    def result(self) -> str:
        """The result in a word."""
        if self.problems:
            return "unfit"
        return "in use" if self.host.spec.claim is not None else "fit"


async def check_hosts(
    environment: str, namespace: str, names: Sequence[str], version: str | None, output: Format
) -> bool:
    """Print why hosts cannot become nodes. Returns whether all of them can."""
    async with client_of(find_environment(environment)) as client:
        hosts = await _hosts(client, namespace, names)
        slots = Slots()

        async def check(host: CapelinHost) -> Checked:
            async with slots.taken(host.spec.bastion):
                return await _check(client, host, version)

        checked = await asyncio.gather(*map(check, hosts))
    columns = (
        Column[Checked]("NAME", lambda it: it.host.name),
        Column[Checked]("RESULT", lambda it: it.result),
        Column[Checked]("KUBELET", lambda it: it.facts.kubelet if it.facts else ""),
        Column[Checked]("RUNTIME", lambda it: it.facts.runtime if it.facts else ""),
        Column[Checked]("PROBLEMS", lambda it: "; ".join(it.problems)),
    )
    print_list(checked, columns, _check_data, output)
    return not any(result.problems for result in checked)


async def _check(client: Client, host: CapelinHost, version: str | None) -> Checked:
    spec = host.spec
    try:
        keys = spec.host_keys
        if not keys and not spec.host_authorities:
            keys = [await read_host_key(spec.address, spec.port, None)]
        target = await ssh_target(client, host, keys)
        async with target.connect(None) as transport:
            state = await observe(transport)
            facts = await observe_facts(transport)
    except (TransportError, Blocked) as error:
        return Checked(host=host, problems=[str(error)])
    if spec.claim is not None:
        return Checked(host=host, facts=facts)
    found = [*_remains(state), *problems(facts, time.time(), version=version)]
    return Checked(host=host, facts=facts, problems=found)


def _remains(state: HostState) -> list[str]:
    found = [f"the program {name} is missing: install it" for name in state.missing]
    if state.marker is not None:
        found.append("it has the marker of a machine in /var/lib/capelin: clean it")
    if state.node_files:
        found.append(f"it is a node already, with {', '.join(state.node_files)}: kubeadm reset")
    return found


def _check_data(checked: Checked) -> object:
    facts = checked.facts
    return {
        "name": checked.host.name,
        "result": checked.result,
        "problems": list(checked.problems),
        "kubelet": facts.kubelet if facts else "",
        "runtime": facts.runtime if facts else "",
    }


async def list_hosts(environment: str, namespace: str | None, output: Format) -> None:
    """Print the hosts of a namespace, or of all."""
    async with client_of(find_environment(environment)) as client:
        hosts = (await client.list(CapelinHost, namespace)).items
    hosts.sort(key=lambda host: (host.namespace or "", host.name))
    columns = (
        Column[CapelinHost]("NAMESPACE", lambda host: host.namespace or ""),
        Column[CapelinHost]("NAME", lambda host: host.name),
        Column[CapelinHost]("PHASE", _phase),
        Column[CapelinHost](
            "MACHINE", lambda host: host.spec.claim.machine if host.spec.claim else ""
        ),
        Column[CapelinHost]("ADDRESS", lambda host: f"{host.spec.address}:{host.spec.port}"),
        Column[CapelinHost]("DOMAIN", lambda host: host.spec.failure_domain or ""),
        Column[CapelinHost]("REASON", lambda host: _ready(host)[0]),
        Column[CapelinHost]("CPU", lambda host: _capacity(host, "cpu"), wide=True, right=True),
        Column[CapelinHost](
            "MEMORY", lambda host: _capacity(host, "memory"), wide=True, right=True
        ),
        Column[CapelinHost](
            "SYSTEM",
            lambda host: (host.status and host.status.operating_system_image) or "",
            wide=True,
        ),
        Column[CapelinHost]("LAST CONTACT", _last_contact, wide=True),
        Column[CapelinHost]("MESSAGE", lambda host: _ready(host)[1], wide=True),
    )
    print_list(hosts, columns, lambda host: host.dump(), output)


async def power_cycle_hosts(
    environment: str, namespace: str, names: Sequence[str], *, in_use: bool
) -> None:
    """Request a power cycle of hosts, of all or none."""
    async with client_of(find_environment(environment)) as client:
        hosts = await _hosts(client, namespace, names)
        for host in hosts:
            claim = host.spec.claim
            if host.spec.power is None:
                raise InvalidInputError(
                    f"The host {host.name} cannot be power cycled.",
                    reason="spec.power is not set.",
                    hint="Set it, or switch the host off and on yourself.",
                )
            if claim is not None and claim.released_at is None and not in_use:
                raise InvalidInputError(
                    f"The host {host.name} is in use.",
                    reason=f"The machine {claim.machine} of cluster {claim.cluster} has it.",
                    hint="Drain its Node and add --in-use.",
                )
        patch = {"metadata": {"annotations": {POWER_CYCLE_ANNOTATION: ""}}}
        for host in hosts:
            await client.patch(CapelinHost, host.name, namespace, patch)
    requested = ", ".join(host.name for host in hosts)
    typer.echo(f"Requested. The provider power cycles {requested}: see the condition PowerCycled.")


async def _hosts(client: Client, namespace: str, names: Sequence[str]) -> list[CapelinHost]:
    hosts = (await client.list(CapelinHost, namespace)).items
    if missing := sorted({*names} - {host.name for host in hosts}):
        known = ", ".join(host.name for host in hosts[:10]) or "none"
        raise MissingError(
            f"Namespace {namespace} has no host {', '.join(missing)}.",
            reason=f"Hosts there: {known}.",
            hint="See capelin hosts list.",
        )
    return sorted((h for h in hosts if not names or h.name in names), key=lambda host: host.name)


def _phase(host: CapelinHost) -> str:
    return (host.status.phase if host.status else None) or "Unavailable"


def _ready(host: CapelinHost) -> tuple[str, str]:
    ready = find_condition(host.status.conditions, READY) if host.status else None
    if ready is None or ready.status == "True":
        return "", ""
    return ready.reason, ready.message


def _last_contact(host: CapelinHost) -> str:
    last = host.status.last_contact_at if host.status else None
    return "" if last is None else f"{last:%Y-%m-%d %H:%M} UTC"


def _capacity(host: CapelinHost, resource: str) -> str:
    return str(host.status.capacity.get(resource, "")) if host.status else ""
