"""The components of a control plane on processes: their ports and command lines."""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from capelin.pki import KeyPair
from capelin.provider import Blocked
from capelin.versions import Version
from capelin_embedded import relay
from capelin_embedded.addresses import is_free
from capelin_embedded.components import TIMER_SLACK
from capelin_embedded.processes import Command, Limits, private_folder

from capelin_control_plane.api.policy import Policy, address_of
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.backends.processes.state_dir import StateDir, write_if_changed
from capelin_control_plane.desired.arguments import (
    CONTROLLER_PORTS,
    GO_ENVIRONMENT,
    SHUTDOWN_DELAY,
    Controller,
    EtcdMember,
    api_server_arguments,
    controller_arguments,
    etcd_arguments,
    shutdown_delay,
)
from capelin_control_plane.desired.component_files import ENCRYPTION_PREFIX
from capelin_control_plane.desired.control_plane import PROGRAMS, Component, ControlPlane
from capelin_control_plane.desired.instances import DesiredComponents, Instance, Plan, Resources
from capelin_control_plane.keys.certificates import Authorities, key_pair, pki_files

API_SERVER_PORT = 10443
ETCD_PORT = 2379
_PORTS_OF_A_MEMBER = 10

PLANNED_AT = "CAPELIN_PLANNED_AT"
"""The environment variable with the moment at which an instance was planned.

It makes the command of a replacement differ, so that the supervisor restarts the process.
"""

AUTHORITIES = "CAPELIN_AUTHORITIES"
"""The environment variable that identifies the CAs. Components read some of them only at start."""

# Replacing an etcd member costs its cluster a vote for a while, and gains nothing.
_ROLLED_OUT: frozenset[Component] = frozenset(
    {"kube-apiserver", "kube-controller-manager", "kube-scheduler"}
)

# After SIGTERM, an API server gets no new connections from the relay. It serves clients that have
# just connected for this long. Then it asks those with open connections to reconnect, for as long
# as requests and watches of others take to end.
_SHUTDOWN = {
    SHUTDOWN_DELAY: "2s",
    "shutdown-send-retry-after": "true",
    "shutdown-watch-termination-grace-period": "2s",
}
# Simulated Nodes have fictitious addresses, and name the server of their kubelets like this.
_KUBELETS = {"kubelet-preferred-address-types": "InternalDNS,InternalIP,ExternalIP,Hostname"}
# An API server derives its identity from the hostname only. Those of one machine would all renew
# the same Lease, and fail when another was first. Only the proxy to peers of other versions reads
# these Leases. It is not configured, and since v1.36 it is on and cannot be without identities.
_FEATURES = {"APIServerIdentity": False, "UnknownVersionInteroperabilityProxy": False}
_GRACE_SECONDS = 10.0


def renew_certificates(
    state_dir: StateDir, desired: ControlPlane, authorities: Authorities, host: str
) -> datetime | None:
    """Issue every certificate that is missing or due. Returns when the next one is due."""
    own, read = [state_dir.address], partial(_read, private_folder(state_dir.pki))
    files, renew_at = pki_files(desired, authorities, read, host=host, internal=own, etcd=own)
    for name, content in files.items():
        write_if_changed(state_dir.pki / name, content)
    for dropped in state_dir.pki.glob(f"{ENCRYPTION_PREFIX}*"):
        if dropped.name not in files:
            dropped.unlink()
    return renew_at


def write_kubeconfigs(state_dir: StateDir, server: str) -> None:
    """Write the kubeconfigs of the components that are clients of the API server."""
    for certificate in ("controller-manager", "scheduler"):
        content = state_dir.files.component_kubeconfig(certificate, server)
        write_if_changed(Path(state_dir.files.kubeconfig(certificate)), content)


def read_key_pair(path: Path) -> KeyPair | None:
    """A certificate and its key, from the file that holds both."""
    return key_pair(_read(path.parent, path.name))


def _read(folder: Path, name: str) -> bytes | None:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Program:
    version: str
    path: Path


def programs_of(plan: Plan) -> dict[Component, Program] | None:
    """The newest programs that a plan runs. None if a component is missing."""
    newest: dict[Component, Program] = {}
    for instance in sorted(plan.instances, key=lambda planned: Version.parse(planned.version)):
        newest[instance.component] = Program(instance.version, Path(instance.arguments[0]))
    return newest if newest.keys() >= set(PROGRAMS) else None


def desired_components(
    desired: ControlPlane,
    state_dir: StateDir,
    listen: str,
    programs: Mapping[Component, Program],
) -> DesiredComponents:
    """The desired instances of a control plane.

    Args:
        desired: The desired state.
        state_dir: Its state directory.
        listen: The address at which the relay listens.
        programs: The program of each component.
    """
    authorities = {} if desired.authorities is None else {AUTHORITIES: desired.authorities}

    def instance(component: Component, index: int, arguments: tuple[str, ...]) -> Instance:
        settings = desired.settings[component]
        is_rolled_out = component in _ROLLED_OUT
        return Instance(
            component=component,
            index=index,
            version=programs[component].version,
            arguments=(str(programs[component].path), *arguments),
            environment={**GO_ENVIRONMENT[component], **settings.environment, **authorities},
            resources=Resources(memory_bytes=settings.memory_bytes, cpus=settings.cpus),
            planned_at=desired.now if is_rolled_out else None,
            rollout_after=desired.rollout_after if is_rolled_out else None,
        )

    def api_server(index: int) -> Instance:
        return instance("kube-apiserver", index, _api_server(desired, state_dir, index))

    return DesiredComponents(
        etcd=tuple(
            instance("etcd", index, _etcd(desired, state_dir, index))
            for index in range(desired.etcd_replicas)
        ),
        relay=_relay(desired, state_dir, listen, programs["kube-apiserver"].version),
        replicas=desired.replicas,
        api_server=api_server,
        controllers=tuple(
            instance(component, 0, _controller(desired, state_dir, component))
            for component in CONTROLLER_PORTS
        ),
    )


def command_of(instance: Instance) -> Command:
    environment = dict(instance.environment)
    if instance.planned_at is not None:
        environment[PLANNED_AT] = instance.planned_at.isoformat()
    # The relay wakes up only for connections, and etcd members depend on each other's heartbeats.
    has_slack = instance.component not in {"etcd", "relay"}
    return Command(
        instance.arguments,
        environment,
        limits=Limits(
            memory_bytes=instance.resources.memory_bytes,
            cpus=instance.resources.cpus,
            timer_slack=TIMER_SLACK if has_slack else 0.0,
        ),
    )


def grace_seconds(instance: Instance) -> float:
    """How long an instance may take to end before it is killed."""
    return shutdown_delay(instance.arguments) + _GRACE_SECONDS


def api_server_port(index: int) -> int:
    """The port of an API server, at the control plane's address."""
    return API_SERVER_PORT + index


def etcd_port(index: int) -> int:
    """The client port of an etcd member. Its peer and metrics ports follow it."""
    return ETCD_PORT + _PORTS_OF_A_MEMBER * index


def etcd_metrics_port(index: int) -> int:
    """The port at which an etcd member answers health checks without a certificate."""
    return etcd_port(index) + 2


def etcd_peer_url(state_dir: StateDir, index: int) -> str:
    return f"https://{state_dir.address}:{etcd_port(index) + 1}"


def joining(member: Instance, others: Collection[int], state_dir: StateDir) -> Instance:
    """A member that joins a cluster. etcd starts it only if it names exactly the listed members."""
    members = ",".join(
        f"etcd-{index}={etcd_peer_url(state_dir, index)}"
        for index in sorted({*others, member.index})
    )
    own = {"--initial-cluster": members, "--initial-cluster-state": "existing"}
    kept = [flag for flag in member.arguments if flag.partition("=")[0] not in own]
    return replace(member, arguments=(*kept, *(f"{flag}={value}" for flag, value in own.items())))


def listen_host(state_dir: StateDir, host: str, policy: Policy) -> str:
    """The address at which the relay listens: the endpoint's if this machine has it.

    Raises:
        Blocked: the address is not for this control plane.
    """
    address = address_of(host)
    if address is None or str(address) == state_dir.address:
        return state_dir.address
    if address.is_loopback:
        raise Blocked(
            Reason.INVALID_CONFIGURATION,
            f"endpoint host {host} is a loopback address, and not {state_dir.address}, which is"
            " this control plane's own",
            "leave the host out, or write that address",
        )
    # An address of another machine leads here through a load balancer that we cannot check.
    if not is_free(str(address), 0):
        return state_dir.address
    if policy.may_listen_at(address):
        return str(address)
    raise Blocked(
        Reason.INVALID_CONFIGURATION,
        f"endpoint host {host} is an address of the provider's machine, which this provider keeps"
        " for others",
        f"leave the host out, or ask its administrator for --endpoint-networks={address}",
    )


def relay_target(instance: Instance) -> relay.Target:
    arguments = instance.arguments
    return relay.parse_target(arguments[arguments.index("--listen") + 1])


def _etcd(desired: ControlPlane, state_dir: StateDir, index: int) -> tuple[str, ...]:
    peers = {
        f"etcd-{peer}": etcd_peer_url(state_dir, peer) for peer in range(desired.etcd_replicas)
    }
    member = EtcdMember(
        name=f"etcd-{index}",
        data=state_dir.etcd_data(index),
        listen_address=state_dir.address,
        advertise_host=state_dir.address,
        client_port=etcd_port(index),
        peer_port=etcd_port(index) + 1,
        metrics_port=etcd_metrics_port(index),
        state="new",
    )
    return etcd_arguments(desired, state_dir.files, member, members=peers, token=state_dir.address)


def _api_server(desired: ControlPlane, state_dir: StateDir, index: int) -> tuple[str, ...]:
    return api_server_arguments(
        desired,
        state_dir.files,
        address=state_dir.address,
        advertise_address=state_dir.address,
        port=api_server_port(index),
        etcd_urls=tuple(
            f"https://{state_dir.address}:{etcd_port(member)}"
            for member in range(desired.etcd_replicas)
        ),
        defaults={**_SHUTDOWN, **_KUBELETS},
        features=_FEATURES,
    )


def _controller(
    desired: ControlPlane, state_dir: StateDir, component: Controller
) -> tuple[str, ...]:
    return controller_arguments(
        desired, state_dir.files, component, address=state_dir.address, elects_leader=False
    )


def _relay(desired: ControlPlane, state_dir: StateDir, listen: str, version: str) -> Instance:
    arguments = (
        *(sys.executable, "-I", "-S", relay.__file__),
        *("--listen", f"{listen}:{desired.port}"),
        *("--targets", str(state_dir.targets)),
        *("--control", str(state_dir.relay_control)),
    )
    return Instance("relay", 0, version, arguments)
