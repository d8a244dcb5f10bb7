"""What a control plane on processes is made of: from what is wanted to command lines."""

import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from capelin.api.durations import parse_duration
from capelin.embedded import relay
from capelin.embedded.components import (
    TIMER_SLACK,
    Etcd,
    KubeApiServer,
    KubeControllerManager,
    KubeScheduler,
)
from capelin.embedded.processes import Command, Limits

from capelin_control_plane.backends.processes.places import Place
from capelin_control_plane.desired import ControlPlane, Program
from capelin_control_plane.plan import PLANNED_AT, Composition, Instance

API_SERVER_PORT = 10443
CONTROLLER_MANAGER_PORT = 10257
SCHEDULER_PORT = 10259
ETCD_PORT = 2379
_PORTS_A_MEMBER = 10
_SERVICE_ACCOUNT_KEY = "service-account.key"
_SERVICE_ACCOUNT_PUBLIC_KEY = "service-account.pub"

# An etcd member that is replaced costs its cluster a vote for a while, and gains nothing.
_ROLLED_OUT = frozenset[Program]({"kube-apiserver", "kube-controller-manager", "kube-scheduler"})

# Less memory for a little more processor time: many control planes share a machine.
_GO = {
    "etcd": {},
    "kube-apiserver": {"GOGC": "50"},
    "kube-controller-manager": {"GOGC": "50"},
    "kube-scheduler": {"GOGC": "50"},
}

# The relay hands nobody to an API server any more when it is told to go. Those who have only just
# connected have so long to be served by it.
_DELAY = "shutdown-delay-duration"
_GOING = {_DELAY: "2s"}
_SECONDS_TO_GO = 10.0


def composition(
    wanted: ControlPlane,
    place: Place,
    listen: str,
    programs: Mapping[Program, Path],
    *,
    rejoined: Collection[int] = (),
) -> Composition:
    """The instances of a control plane; etcd members in `rejoined` slots came later."""
    members = tuple(
        _etcd_member(wanted, place, slot, rejoined=slot in rejoined)
        for slot in range(wanted.etcd_replicas)
    )
    urls = tuple(member.client_url for member in members)

    def run(program: Program, slot: int, arguments: tuple[str, ...]) -> Instance:
        command = _command(wanted, program, programs[program], arguments)
        rollout_after = wanted.rollout_after if program in _ROLLED_OUT else None
        return Instance(program, slot, wanted.version, command, rollout_after=rollout_after)

    def api_server(slot: int) -> Instance:
        return run("kube-apiserver", slot, _api_server(wanted, place, slot, urls).arguments)

    return Composition(
        etcd=tuple(
            replace(run("etcd", slot, one.arguments), rejoined=slot in rejoined)
            for slot, one in enumerate(members)
        ),
        relay=Instance("relay", 0, wanted.version, _relay(place, listen, wanted.port)),
        replicas=wanted.replicas,
        api_server=api_server,
        others=(
            run("kube-controller-manager", 0, _controller_manager(wanted, place).arguments),
            run("kube-scheduler", 0, _scheduler(wanted, place).arguments),
        ),
    )


def api_server_port(slot: int) -> int:
    """The port of the API server in a slot, at the control plane's address."""
    return API_SERVER_PORT + slot


def etcd_port(slot: int) -> int:
    """The port at which an etcd member answers clients; peers and metrics are next to it."""
    return ETCD_PORT + _PORTS_A_MEMBER * slot


def etcd_metrics_port(slot: int) -> int:
    """The port at which an etcd member tells anybody how it is."""
    return etcd_port(slot) + 2


def peer_url(place: Place, slot: int) -> str:
    """Where the other etcd members find one."""
    return f"https://{place.address}:{etcd_port(slot) + 1}"


def seconds_to_go(one: Instance) -> float:
    """How long an instance may take to end when it is told to, before it is killed."""
    flag = f"--{_DELAY}="
    said = next((each for each in one.command.arguments if each.startswith(flag)), "")
    try:
        return parse_duration(said.removeprefix(flag)).total_seconds() + _SECONDS_TO_GO
    except ValueError:
        # Most have no delay, and with one that cannot be read an API server does not start.
        return _SECONDS_TO_GO


def component_kubeconfig(place: Place, leaf: str, server: str) -> bytes:
    """A kubeconfig that names files, which a component reads anew when they change."""
    files = place.client(leaf, "ca")
    user = {"client-certificate": str(files.certificate), "client-key": str(files.key)}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "own",
                    "cluster": {"server": server, "certificate-authority": str(files.ca)},
                }
            ],
            "users": [{"name": leaf, "user": user}],
            "contexts": [{"name": "own", "context": {"cluster": "own", "user": leaf}}],
            "current-context": "own",
        }
    ).encode()


def kubeconfig_path(place: Place, leaf: str) -> Path:
    """Where a component's kubeconfig is."""
    return place.folder / f"{leaf}.kubeconfig"


def service_account_files(place: Place) -> tuple[Path, Path]:
    """The private and the public key of service account tokens."""
    pki = place.folder / "pki"
    return pki / _SERVICE_ACCOUNT_KEY, pki / _SERVICE_ACCOUNT_PUBLIC_KEY


def _command(
    wanted: ControlPlane, program: Program, path: Path, arguments: tuple[str, ...]
) -> Command:
    tuning = wanted.tuning[program]
    environment = {**_GO[program], **tuning.environment}
    if program in _ROLLED_OUT:
        environment[PLANNED_AT] = wanted.as_of.isoformat()
    return Command(
        (str(path), *arguments),
        environment,
        limits=Limits(
            memory_bytes=tuning.memory_bytes,
            cpus=tuning.cpus,
            timer_slack=0.0 if program == "etcd" else TIMER_SLACK,
        ),
    )


def _etcd_member(wanted: ControlPlane, place: Place, slot: int, *, rejoined: bool) -> Etcd:
    peers = {f"etcd-{one}": peer_url(place, one) for one in range(wanted.etcd_replicas)}
    return Etcd(
        name=f"etcd-{slot}",
        data=place.etcd(slot),
        listen_address=place.address,
        advertise_host=place.address,
        client_port=etcd_port(slot),
        peer_port=etcd_port(slot) + 1,
        metrics_port=etcd_metrics_port(slot),
        members=peers,
        token=place.address,
        state="existing" if rejoined else "new",
        serving=place.files("etcd"),
        client_ca=place.authority("etcd"),
        peer=place.files("etcd"),
        peer_ca=place.authority("etcd"),
        extra=wanted.tuning["etcd"].arguments,
    )


def _api_server(
    wanted: ControlPlane, place: Place, slot: int, etcd_urls: tuple[str, ...]
) -> KubeApiServer:
    signing, public = service_account_files(place)
    return KubeApiServer(
        bind_address=place.address,
        advertise_address=place.address,
        port=api_server_port(slot),
        etcd_urls=etcd_urls,
        etcd_client=place.client("apiserver-etcd-client", "etcd"),
        serving=place.files("apiserver"),
        client_ca=place.authority("ca"),
        front_proxy=place.client("front-proxy-client", "proxy"),
        kubelet_client=place.files("apiserver-kubelet-client"),
        service_account_issuer=f"https://kubernetes.default.svc.{wanted.service_domain}",
        service_account_public_keys=(public,),
        service_account_key=signing,
        service_cidr=",".join(wanted.service_cidrs),
        # It would register a loopback address, which Kubernetes does not take.
        registers_itself=False,
        extra={**_GOING, **wanted.tuning["kube-apiserver"].arguments},
    )


def _controller_manager(wanted: ControlPlane, place: Place) -> KubeControllerManager:
    signing, _ = service_account_files(place)
    return KubeControllerManager(
        kubeconfig=kubeconfig_path(place, "controller-manager"),
        bind_address=place.address,
        port=CONTROLLER_MANAGER_PORT,
        serving=place.files("controller-manager"),
        client_ca=place.authority("ca"),
        signing=place.files("ca-signing"),
        root_ca=place.authority("ca"),
        service_account_key=signing,
        service_cidr=",".join(wanted.service_cidrs),
        pod_cidr=",".join(wanted.pod_cidrs) or None,
        cluster_name=wanted.cluster,
        elects_leader=False,
        extra=wanted.tuning["kube-controller-manager"].arguments,
    )


def _scheduler(wanted: ControlPlane, place: Place) -> KubeScheduler:
    return KubeScheduler(
        kubeconfig=kubeconfig_path(place, "scheduler"),
        bind_address=place.address,
        port=SCHEDULER_PORT,
        serving=place.files("scheduler"),
        client_ca=place.authority("ca"),
        elects_leader=False,
        extra=wanted.tuning["kube-scheduler"].arguments,
    )


def _relay(place: Place, listen: str, port: int) -> Command:
    return Command(
        (
            *(sys.executable, "-I", "-S", relay.__file__),
            *("--listen", f"{listen}:{port}"),
            *("--targets", str(place.targets)),
            *("--control", str(place.relay)),
        )
    )


def relay_listens_at(command: Command) -> relay.Target:
    """Where a relay was told to listen."""
    arguments = command.arguments
    return relay.parse_target(arguments[arguments.index("--listen") + 1])
