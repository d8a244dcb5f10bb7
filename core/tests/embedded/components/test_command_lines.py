"""Command lines, and that the real programs know every flag on them."""

import asyncio
import dataclasses
from pathlib import Path, PurePath, PurePosixPath

import pytest
from capelin.embedded.binaries import TESTED_KUBERNETES, Binaries
from capelin.embedded.components import (
    OWNED_FLAGS,
    CertificateFiles,
    ClientFiles,
    Etcd,
    KubeApiServer,
    KubeControllerManager,
    KubeScheduler,
    OwnedFlagError,
    check_extra,
)

KEYS = PurePosixPath("/keys")


def files(name: str) -> CertificateFiles:
    return CertificateFiles(KEYS / f"{name}.crt", KEYS / f"{name}.key")


def client(name: str) -> ClientFiles:
    return ClientFiles(KEYS / "ca.crt", KEYS / f"{name}.crt", KEYS / f"{name}.key")


ETCD = Etcd(
    name="a",
    data=PurePath("/data"),
    listen_address="127.64.0.1",
    advertise_host="127.64.0.1",
    client_port=2379,
    peer_port=2380,
    metrics_port=2381,
    members={"b": "https://127.64.0.2:2380", "a": "https://127.64.0.1:2380"},
    token="demo",
    serving=files("etcd"),
    client_ca=KEYS / "ca.crt",
    peer=files("peer"),
    peer_ca=KEYS / "ca.crt",
    durable=False,
)
API_SERVER = KubeApiServer(
    bind_address="127.64.0.1",
    advertise_address="127.64.0.1",
    port=6443,
    etcd_urls=("https://127.64.0.1:2379", "https://127.64.0.2:2379"),
    etcd_client=client("etcd-client"),
    serving=files("apiserver"),
    client_ca=KEYS / "ca.crt",
    front_proxy=client("front-proxy"),
    kubelet_client=files("kubelet-client"),
    service_account_public_keys=(KEYS / "new.pub", KEYS / "old.pub"),
    service_account_key=KEYS / "new.key",
    service_cidr="10.96.0.0/16",
    registers_itself=False,
    features={"WatchList": True},
)
CONTROLLER_MANAGER = KubeControllerManager(
    kubeconfig=KEYS / "kubeconfig",
    bind_address="127.64.0.1",
    port=10257,
    serving=files("controller-manager"),
    client_ca=KEYS / "ca.crt",
    signing=files("ca"),
    root_ca=KEYS / "ca.crt",
    service_account_key=KEYS / "new.key",
    service_cidr="10.96.0.0/16",
    pod_cidr="10.244.0.0/16",
)
SCHEDULER = KubeScheduler(
    kubeconfig=KEYS / "kubeconfig",
    bind_address="127.64.0.1",
    port=10259,
    serving=files("scheduler"),
    client_ca=KEYS / "ca.crt",
)
ALL: dict[str, Etcd | KubeApiServer | KubeControllerManager | KubeScheduler] = {
    "etcd": ETCD,
    "kube-apiserver": API_SERVER,
    "kube-controller-manager": CONTROLLER_MANAGER,
    "kube-scheduler": SCHEDULER,
}
EVERY = pytest.mark.parametrize("component", list(ALL))


def flags(arguments: tuple[str, ...]) -> dict[str, str]:
    return dict(argument.removeprefix("--").split("=", 1) for argument in arguments)


def with_extra(component: str, **extra: str) -> tuple[str, ...]:
    named = {flag.replace("_", "-"): value for flag, value in extra.items()}
    return dataclasses.replace(ALL[component], extra=named).arguments


def test_etcd_takes_only_clients_and_peers_with_certificates() -> None:
    given = flags(ETCD.arguments)
    assert given["client-cert-auth"] == "true"
    assert given["peer-client-cert-auth"] == "true"
    assert given["listen-client-urls"] == "https://127.64.0.1:2379"
    assert given["listen-metrics-urls"] == "http://127.64.0.1:2381"


def test_etcd_members_have_one_order_whoever_writes_them_down() -> None:
    wanted = "a=https://127.64.0.1:2380,b=https://127.64.0.2:2380"
    assert flags(ETCD.arguments)["initial-cluster"] == wanted
    turned = dataclasses.replace(ETCD, members=dict(sorted(ETCD.members.items())))
    assert turned.arguments == ETCD.arguments


def test_etcd_is_durable_unless_asked_otherwise() -> None:
    assert flags(ETCD.arguments)["unsafe-no-fsync"] == "true"
    assert "unsafe-no-fsync" not in flags(dataclasses.replace(ETCD, durable=True).arguments)


def test_an_api_server_without_a_kubelet_certificate_has_no_flags_for_one() -> None:
    alone = dataclasses.replace(API_SERVER, kubelet_client=None)
    assert flags(API_SERVER.arguments).keys() - flags(alone.arguments).keys() == {
        "kubelet-client-certificate",
        "kubelet-client-key",
        "kubelet-preferred-address-types",
    }


def test_an_api_server_takes_tokens_of_every_key_and_signs_with_one() -> None:
    given = flags(API_SERVER.arguments)
    assert given["service-account-key-file"] == "/keys/new.pub,/keys/old.pub"
    assert given["service-account-signing-key-file"] == "/keys/new.key"


def test_an_api_server_registers_itself_unless_asked_otherwise() -> None:
    assert flags(API_SERVER.arguments)["endpoint-reconciler-type"] == "none"
    registering = dataclasses.replace(API_SERVER, registers_itself=True)
    assert "endpoint-reconciler-type" not in flags(registering.arguments)


def test_nodes_get_addresses_only_from_a_given_range() -> None:
    assert flags(CONTROLLER_MANAGER.arguments)["allocate-node-cidrs"] == "true"
    without = flags(dataclasses.replace(CONTROLLER_MANAGER, pod_cidr=None).arguments)
    assert without["allocate-node-cidrs"] == "false"
    assert "cluster-cidr" not in without


def test_a_component_may_be_the_only_one_of_its_kind() -> None:
    for component in (CONTROLLER_MANAGER, SCHEDULER):
        assert flags(component.arguments)["leader-elect"] == "true"
        alone = dataclasses.replace(component, elects_leader=False)
        assert flags(alone.arguments)["leader-elect"] == "false"


@EVERY
def test_flags_stand_once_and_in_alphabetical_order(component: str) -> None:
    names = [argument.partition("=")[0] for argument in with_extra(component, aaa="1", zzz="2")]
    assert names == sorted(names)
    assert len({*names}) == len(names)
    assert {"--aaa", "--zzz"} <= {*names}


@EVERY
@pytest.mark.parametrize("owned", ["etcd", "kube-apiserver"])
def test_flags_that_capelin_owns_cannot_be_set(component: str, owned: str) -> None:
    flag = sorted(OWNED_FLAGS[component])[0 if owned == "etcd" else -1]
    with pytest.raises(OwnedFlagError, match=f"--{flag} is set by Capelin"):
        check_extra({"v": "2", flag: "1"}, OWNED_FLAGS[component])


@EVERY
def test_users_replace_what_is_not_owned(component: str) -> None:
    ours = flags(ALL[component].arguments)
    free = sorted(ours.keys() - OWNED_FLAGS[component] - {"feature-gates"})
    for flag in free:
        changed = dataclasses.replace(ALL[component], extra={flag: "mine"})
        assert flags(changed.arguments) == {**ours, flag: "mine"}


@pytest.mark.parametrize("flag", ["--v", "v=1", "", " "])
def test_what_is_not_a_flag_is_refused(flag: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a flag"):
        check_extra({flag: "1"}, frozenset())


def test_feature_gates_are_merged_gate_by_gate() -> None:
    given = flags(with_extra("kube-apiserver", feature_gates="B=true,WatchList=false"))
    assert given["feature-gates"] == "B=true,WatchList=false"
    given = flags(with_extra("kube-apiserver", feature_gates="B=true"))
    assert given["feature-gates"] == "B=true,WatchList=true"
    assert "feature-gates" not in flags(SCHEDULER.arguments)


@pytest.mark.parametrize("gates", ["A", "A=yes", "A=true;B=false"])
def test_what_is_not_a_feature_gate_is_refused(gates: str) -> None:
    with pytest.raises(ValueError, match="is not a feature gate"):
        with_extra("kube-scheduler", feature_gates=gates)


PROGRAMS = [
    "etcd",
    *(
        f"{component}@{version}"
        for version in TESTED_KUBERNETES
        for component in ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    ),
]


@pytest.fixture(scope="module")
async def paths() -> dict[str, Path]:
    found = await Binaries().fetch(PROGRAMS)
    return {name: binary.path for name, binary in found.items()}


@pytest.mark.needs_programs(*PROGRAMS)
@pytest.mark.parametrize("program", PROGRAMS)
async def test_real_programs_know_every_flag(program: str, paths: dict[str, Path]) -> None:
    async def accepted(*arguments: str) -> bool:
        asked = await asyncio.create_subprocess_exec(
            paths[program],
            *arguments,
            "--version",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        return await asked.wait() == 0

    assert await accepted(*ALL[program.partition("@")[0]].arguments)
    assert not await accepted("--no-such-flag=1")


@EVERY
def test_owned_flags_are_flags(component: str) -> None:
    assert OWNED_FLAGS[component] >= {
        flag for flag in flags(ALL[component].arguments) if flag.endswith(("-file", "-dir"))
    }
