"""A Kubernetes API server with its etcd, as processes on a loopback address of their own."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from capelin.embedded.addresses import free_address, free_port
from capelin.embedded.apiserver.keys import Keys, leaves
from capelin.embedded.binaries import KNOWN_KUBERNETES, Binaries
from capelin.embedded.components import (
    TIMER_SLACK,
    ClientFiles,
    Etcd,
    KubeApiServer,
    KubeControllerManager,
)
from capelin.embedded.processes import (
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
from capelin.pki import new_kubeconfig

CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
)
"""What makes an API server behave without nodes: owners take their objects with them, namespaces
go when they are deleted, roles aggregate, namespaces get their default service account."""

ETCD = "etcd"
KUBE_APISERVER = "kube-apiserver"
KUBE_CONTROLLER_MANAGER = "kube-controller-manager"

_NAMES = (ETCD, KUBE_APISERVER, KUBE_CONTROLLER_MANAGER)

_MORE_MEMORY_LESS_TIME = {"GOGC": "200"}
"""The usual 100 takes a quarter more processor time under load; after `up`, 180 MiB less memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What kind of API server it is."""

    version: str = KNOWN_KUBERNETES[-1]
    durable: bool = True
    """False is faster on slow disks and may lose the last writes when the machine goes down."""
    controllers: tuple[str, ...] = CONTROLLERS
    """The controllers that kube-controller-manager runs; none does without it."""
    service_cidr: str = "10.96.0.0/16"
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    """More flags of kube-apiserver, without their dashes."""

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that it is made of, as `Binaries` knows them."""
        kubernetes = [KUBE_APISERVER, *([KUBE_CONTROLLER_MANAGER] if self.controllers else [])]
        return (ETCD, *(f"{program}@{self.version}" for program in kubernetes))


@dataclass(frozen=True, slots=True)
class Place:
    """Where it listens. Chosen once, so that kubeconfigs stay good over restarts."""

    address: str
    port: int
    etcd_port: int
    etcd_peer_port: int
    controller_manager_port: int

    @classmethod
    def choose(cls, identity: str) -> "Place":
        """An address of its own, and the usual ports there where nobody else has them."""
        return cls(free_address(identity), 6443, 2379, 2380, 10257).with_free_ports()

    def with_free_ports(self) -> "Place":
        """The same place, with other ports for those that somebody listens on."""
        return Place(
            address=self.address,
            port=free_port(self.address, self.port),
            etcd_port=free_port(self.address, self.etcd_port),
            etcd_peer_port=free_port(self.address, self.etcd_peer_port),
            controller_manager_port=free_port(self.address, self.controller_manager_port),
        )


@dataclass(frozen=True, slots=True)
class ApiServer:
    """An API server in a state folder. Whoever starts it again there finds all objects.

    Its processes outlive this object and the Python process that started them.
    """

    folder: Path
    place: Place
    declared: tuple[ProcessSpec, ...]
    """Its processes, for a supervisor that looks after more than these."""

    @classmethod
    async def prepare(
        cls, folder: Path, settings: Settings | None = None, *, binaries: Binaries | None = None
    ) -> "ApiServer":
        """Get the programs, write certificates and kubeconfigs; nothing is started yet."""
        settings = settings or Settings()
        found = await (binaries or Binaries()).fetch(settings.programs)
        paths = {binary.component: binary.path for binary in found.values()}
        folder = private_folder(folder)
        place = _place(folder)
        keys = Keys(folder / "pki")
        keys.ensure(leaves(place.address, settings.service_cidr), datetime.now(UTC))
        _write_kubeconfigs(folder, place, keys)
        return cls(folder, place, _declared(folder, place, keys, settings, paths))

    @property
    def url(self) -> str:
        """Where it answers."""
        return _url(self.place)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder / "admin.kubeconfig"

    @property
    def processes(self) -> Path:
        """The state folder of its processes, and where their logs are."""
        return _processes(self.folder)

    @property
    def keys(self) -> Keys:
        """Its certificates and keys."""
        return Keys(self.folder / "pki")

    def process(self, name: str) -> Process | None:
        """One of its processes, if it runs."""
        return Process.adopt(self.processes, name)

    async def start(self, within: float = 60.0) -> None:
        """Bring everything up and wait until it answers; what runs already is left alone."""
        async with Supervisor(self.processes) as supervisor:
            supervisor.declare(*self.declared)
            await supervisor.ready(within)

    async def stop(self) -> None:
        """Stop everything, etcd last. The objects stay in the folder."""
        async with Supervisor(self.processes) as supervisor:
            await supervisor.stop()


def _url(place: Place) -> str:
    return f"https://{place.address}:{place.port}"


def _processes(folder: Path) -> Path:
    return folder / "processes"


def _place(folder: Path) -> Place:
    file = folder / "place.json"
    before = _read_place(file)
    if before is None:
        place = Place.choose(str(folder))
    elif any(Process.adopt(_processes(folder), name) for name in _NAMES):
        # Who listens there now is ours.
        place = before
    else:
        place = before.with_free_ports()
    if place != before:
        write_private(file, json.dumps(asdict(place)).encode())
    return place


def _read_place(file: Path) -> Place | None:
    if not file.exists():
        return None
    data: dict[str, Any] = json.loads(file.read_bytes())
    return Place(**data)


def _write_kubeconfigs(folder: Path, place: Place, keys: Keys) -> None:
    authority = keys.ca("ca").read_bytes()
    for user in ("admin", "controller-manager"):
        write_private(
            folder / f"{user}.kubeconfig",
            new_kubeconfig(_url(place), authority, user, keys.read(user), cluster="capelin"),
        )


def _declared(
    folder: Path, place: Place, keys: Keys, settings: Settings, paths: Mapping[str, Path]
) -> tuple[ProcessSpec, ...]:
    etcd = _etcd(folder, place, keys, durable=settings.durable)
    api_server = _api_server(place, keys, settings, etcd.client_url)
    answers = partial(
        readiness_probe,
        ca=keys.ca("ca"),
        certificate=keys.folder / "admin.crt",
        key=keys.folder / "admin.key",
    )
    declared = [
        # Accepting connections is enough: the API server waits for answers, and its own readiness
        # includes etcd's.
        ProcessSpec(
            name=ETCD,
            command=Command((str(paths[ETCD]), *etcd.arguments)),
            readiness=partial(tcp_probe, place.address, place.etcd_port),
        ),
        ProcessSpec(
            name=KUBE_APISERVER,
            command=Command(
                (str(paths[KUBE_APISERVER]), *api_server.arguments),
                _MORE_MEMORY_LESS_TIME,
                limits=Limits(timer_slack=TIMER_SLACK),
            ),
            after=(ETCD,),
            readiness=partial(answers, f"{_url(place)}/readyz"),
        ),
    ]
    if settings.controllers:
        manager = _controller_manager(folder, place, keys, settings)
        # It reads its kubeconfig once: a renewed certificate in there needs another process.
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


def _etcd(folder: Path, place: Place, keys: Keys, *, durable: bool) -> Etcd:
    peer_url = f"https://{place.address}:{place.etcd_peer_port}"
    return Etcd(
        name="etcd",
        data=folder / "etcd",
        listen_address=place.address,
        advertise_host=place.address,
        client_port=place.etcd_port,
        peer_port=place.etcd_peer_port,
        members={"etcd": peer_url},
        token=place.address,
        serving=keys.files("etcd"),
        client_ca=keys.ca("etcd-ca"),
        peer=keys.files("etcd"),
        peer_ca=keys.ca("etcd-ca"),
        durable=durable,
    )


def _api_server(place: Place, keys: Keys, settings: Settings, etcd_url: str) -> KubeApiServer:
    return KubeApiServer(
        bind_address=place.address,
        advertise_address=place.address,
        port=place.port,
        etcd_urls=(etcd_url,),
        etcd_client=ClientFiles(
            keys.ca("etcd-ca"),
            keys.folder / "apiserver-etcd-client.crt",
            keys.folder / "apiserver-etcd-client.key",
        ),
        serving=keys.files("apiserver"),
        client_ca=keys.ca("ca"),
        front_proxy=ClientFiles(
            keys.ca("front-proxy-ca"),
            keys.folder / "front-proxy-client.crt",
            keys.folder / "front-proxy-client.key",
        ),
        service_account_public_keys=(keys.service_account_public,),
        service_account_key=keys.service_account,
        service_cidr=settings.service_cidr,
        registers_itself=False,
        extra=settings.arguments,
    )


def _controller_manager(
    folder: Path, place: Place, keys: Keys, settings: Settings
) -> KubeControllerManager:
    return KubeControllerManager(
        kubeconfig=folder / "controller-manager.kubeconfig",
        bind_address=place.address,
        port=place.controller_manager_port,
        serving=keys.files("controller-manager"),
        client_ca=keys.ca("ca"),
        root_ca=keys.ca("ca"),
        service_account_key=keys.service_account,
        service_cidr=settings.service_cidr,
        controllers=settings.controllers,
        elects_leader=False,
    )
