"""A Kubernetes API server with etcd, as processes on their own loopback address."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from capelin.client import Server, User, new_kubeconfig

from capelin_embedded.addresses import free_address, free_port
from capelin_embedded.apiserver.keys import KeyFiles, certificates
from capelin_embedded.binaries import TESTED_KUBERNETES, Binaries
from capelin_embedded.components import (
    TIMER_SLACK,
    CertificateFiles,
    ClientFiles,
    Etcd,
    KubeApiServer,
    KubeControllerManager,
)
from capelin_embedded.processes import (
    Command,
    Limits,
    Process,
    ProcessSpec,
    Supervisor,
    private_folder,
    readiness_probe,
    tcp_probe,
    write_private,
)

CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
)
"""The controllers that an API server without nodes needs: garbage collection, deletion of
namespaces, aggregation of roles, default service accounts."""

ETCD = "etcd"
KUBE_APISERVER = "kube-apiserver"
KUBE_CONTROLLER_MANAGER = "kube-controller-manager"

_NAMES = (ETCD, KUBE_APISERVER, KUBE_CONTROLLER_MANAGER)

_MORE_MEMORY_LESS_TIME = {"GOGC": "200"}
"""The default of 100 takes a quarter more CPU time under load, but saves 180 MiB after `up`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    version: str = TESTED_KUBERNETES[-1]
    durable: bool = True
    """False is faster on slow disks and may lose the last writes when the machine crashes."""
    controllers: tuple[str, ...] = CONTROLLERS
    """The controllers of kube-controller-manager, which is not started without any."""
    service_cidr: str = "10.96.0.0/16"
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    """Additional flags of kube-apiserver, without dashes."""

    @property
    def programs(self) -> tuple[str, ...]:
        """Its programs, by their names for `Binaries`."""
        kubernetes = [KUBE_APISERVER, *([KUBE_CONTROLLER_MANAGER] if self.controllers else [])]
        return (ETCD, *(f"{program}@{self.version}" for program in kubernetes))


@dataclass(frozen=True, slots=True)
class Listeners:
    """The address and the ports of its processes. They survive restarts."""

    address: str
    port: int
    etcd_port: int
    etcd_peer_port: int
    controller_manager_port: int

    @classmethod
    def choose(cls, identity: str) -> "Listeners":
        """Its own address, with the usual ports if they are free."""
        return cls(free_address(identity), 6443, 2379, 2380, 10257).with_free_ports()

    def with_free_ports(self) -> "Listeners":
        """The same, with other ports for those in use."""
        return Listeners(
            address=self.address,
            port=free_port(self.address, self.port),
            etcd_port=free_port(self.address, self.etcd_port),
            etcd_peer_port=free_port(self.address, self.etcd_peer_port),
            controller_manager_port=free_port(self.address, self.controller_manager_port),
        )


@dataclass(frozen=True, slots=True)
class ApiServer:
    """An API server in a state folder, which keeps its objects across restarts.

    Its processes outlive this object and the Python process that started them.
    """

    folder: Path
    listeners: Listeners
    declared: tuple[ProcessSpec, ...]
    """The specs of its processes, for a supervisor that also runs other processes."""

    @classmethod
    async def prepare(
        cls, folder: Path, settings: Settings | None = None, *, binaries: Binaries | None = None
    ) -> "ApiServer":
        """Download or build the binaries, write certificates and kubeconfigs. Starts nothing."""
        settings = settings or Settings()
        found = await (binaries or Binaries()).fetch(settings.programs)
        paths = {binary.component: binary.path for binary in found.values()}
        folder = private_folder(folder)
        listeners = _choose_listeners(folder)
        keys = KeyFiles(folder / "pki")
        keys.ensure(certificates(listeners.address, settings.service_cidr), datetime.now(UTC))
        server = Server(_url(listeners), ca=keys.ca("ca").read_bytes())
        for name in ("admin", "controller-manager"):
            pair = keys.read(name)
            user = User(certificate=pair.certificate_pem, key=pair.private_key_pem)
            kubeconfig = new_kubeconfig(server, user, cluster="capelin", username=name)
            write_private(folder / f"{name}.kubeconfig", kubeconfig)
        return cls(folder, listeners, _declared(folder, listeners, keys, settings, paths))

    @property
    def url(self) -> str:
        return _url(self.listeners)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "admin.kubeconfig"

    @property
    def processes(self) -> Path:
        """The state folder of its processes, with their logs."""
        return _processes(self.folder)

    @property
    def keys(self) -> KeyFiles:
        return KeyFiles(self.folder / "pki")

    def process(self, name: str) -> Process | None:
        return Process.adopt(self.processes, name)

    async def start(self, within: float = 60.0) -> None:
        """Start its processes and wait until it is ready. Adopts running processes."""
        async with Supervisor(self.processes) as supervisor:
            supervisor.declare(*self.declared)
            await supervisor.ready(within)

    async def stop(self) -> None:
        """Stop everything, etcd last. The objects stay in the folder."""
        async with Supervisor(self.processes) as supervisor:
            await supervisor.stop()


def _url(listeners: Listeners) -> str:
    return f"https://{listeners.address}:{listeners.port}"


def _processes(folder: Path) -> Path:
    return folder / "processes"


def _choose_listeners(folder: Path) -> Listeners:
    file = folder / "place.json"
    before = read_listeners(file)
    if before is None:
        listeners = Listeners.choose(str(folder))
    elif any(Process.adopt(_processes(folder), name) for name in _NAMES):
        # Our own processes listen on these ports.
        listeners = before
    else:
        listeners = before.with_free_ports()
    if listeners != before:
        write_private(file, json.dumps(asdict(listeners)).encode(), lasting=True)
    return listeners


def read_listeners(file: Path) -> Listeners | None:
    """The addresses chosen before. None if the file is missing, or was lost in a power failure."""
    try:
        data: dict[str, Any] = json.loads(file.read_bytes())
        return Listeners(**data)
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _declared(
    folder: Path,
    listeners: Listeners,
    keys: KeyFiles,
    settings: Settings,
    paths: Mapping[str, Path],
) -> tuple[ProcessSpec, ...]:
    etcd = _etcd(folder, listeners, keys, durable=settings.durable)
    api_server = _api_server(listeners, keys, settings, etcd.client_url)
    certificate, key = keys.files("admin")
    answers = partial(readiness_probe, ca=keys.ca("ca"), certificate=certificate, key=key)
    declared = [
        # Accepting connections is enough: the API server waits for etcd, and its readiness includes
        # etcd's.
        ProcessSpec(
            name=ETCD,
            command=Command((str(paths[ETCD]), *etcd.arguments)),
            readiness=partial(tcp_probe, listeners.address, listeners.etcd_port),
        ),
        ProcessSpec(
            name=KUBE_APISERVER,
            command=Command(
                (str(paths[KUBE_APISERVER]), *api_server.arguments),
                _MORE_MEMORY_LESS_TIME,
                limits=Limits(timer_slack=TIMER_SLACK),
            ),
            after=(ETCD,),
            readiness=partial(answers, f"{_url(listeners)}/readyz"),
        ),
    ]
    if settings.controllers:
        manager = _controller_manager(folder, listeners, keys, settings)
        # It reads its kubeconfig only once: a renewed certificate requires a restart.
        certificate = hashlib.sha256(keys.read("controller-manager").certificate_pem).hexdigest()
        declared.append(
            ProcessSpec(
                name=KUBE_CONTROLLER_MANAGER,
                command=Command(
                    (str(paths[KUBE_CONTROLLER_MANAGER]), *manager.arguments),
                    {"CAPELIN_CERTIFICATE": certificate},
                    limits=Limits(timer_slack=TIMER_SLACK),
                ),
                after=(KUBE_APISERVER,),
            )
        )
    return tuple(declared)


def _etcd(folder: Path, listeners: Listeners, keys: KeyFiles, *, durable: bool) -> Etcd:
    peer_url = f"https://{listeners.address}:{listeners.etcd_peer_port}"
    return Etcd(
        name="etcd",
        data=folder / "etcd",
        listen_address=listeners.address,
        advertise_host=listeners.address,
        client_port=listeners.etcd_port,
        peer_port=listeners.etcd_peer_port,
        members={"etcd": peer_url},
        token=listeners.address,
        serving=CertificateFiles(*keys.files("etcd")),
        client_ca=keys.ca("etcd-ca"),
        peer=CertificateFiles(*keys.files("etcd")),
        peer_ca=keys.ca("etcd-ca"),
        durable=durable,
    )


def _api_server(
    listeners: Listeners, keys: KeyFiles, settings: Settings, etcd_url: str
) -> KubeApiServer:
    return KubeApiServer(
        bind_address=listeners.address,
        advertise_address=listeners.address,
        port=listeners.port,
        etcd_urls=(etcd_url,),
        etcd_client=ClientFiles(keys.ca("etcd-ca"), *keys.files("apiserver-etcd-client")),
        serving=CertificateFiles(*keys.files("apiserver")),
        client_ca=keys.ca("ca"),
        front_proxy=ClientFiles(keys.ca("front-proxy-ca"), *keys.files("front-proxy-client")),
        service_account_public_keys=(keys.service_account_public,),
        service_account_key=keys.service_account,
        service_cidr=settings.service_cidr,
        registers_itself=False,
        extra=settings.arguments,
    )


def _controller_manager(
    folder: Path, listeners: Listeners, keys: KeyFiles, settings: Settings
) -> KubeControllerManager:
    return KubeControllerManager(
        kubeconfig=folder / "controller-manager.kubeconfig",
        bind_address=listeners.address,
        port=listeners.controller_manager_port,
        serving=CertificateFiles(*keys.files("controller-manager")),
        client_ca=keys.ca("ca"),
        root_ca=keys.ca("ca"),
        service_account_key=keys.service_account,
        service_cidr=settings.service_cidr,
        controllers=settings.controllers,
        elects_leader=False,
    )
