"""Command lines. The real binaries accept all their flags."""

import asyncio
import dataclasses
from pathlib import Path, PurePath, PurePosixPath

import pytest
from capelin_embedded.binaries import TESTED_KUBERNETES, Binaries
from capelin_embedded.components import (
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


def test_etcd_requires_certificates_of_clients_and_peers() -> None:
    arguments = flags(ETCD.arguments)
    assert arguments["client-cert-auth"] == "true"
    assert arguments["peer-client-cert-auth"] == "true"
    assert arguments["listen-client-urls"] == "https://127.64.0.1:2379"
    assert arguments["listen-metrics-urls"] == "http://127.64.0.1:2381"


def test_etcd_members_are_sorted() -> None:
    expected = "a=https://127.64.0.1:2380,b=https://127.64.0.2:2380"
    assert flags(ETCD.arguments)["initial-cluster"] == expected
    members = ETCD.members
    assert not isinstance(members, str)
    reordered = dataclasses.replace(ETCD, members=dict(sorted(members.items())))
    assert reordered.arguments == ETCD.arguments


def test_etcd_can_read_its_members_from_a_variable() -> None:
    in_a_pod = dataclasses.replace(ETCD, members="$(INITIAL_CLUSTER)")
    assert flags(in_a_pod.arguments)["initial-cluster"] == "$(INITIAL_CLUSTER)"


def test_etcd_skips_fsync_only_if_it_is_not_durable() -> None:
    assert flags(ETCD.arguments)["unsafe-no-fsync"] == "true"
    assert "unsafe-no-fsync" not in flags(dataclasses.replace(ETCD, durable=True).arguments)


def test_an_api_server_without_a_kubelet_client_has_no_flags_for_it() -> None:
    without = dataclasses.replace(API_SERVER, kubelet_client=None)
    assert flags(API_SERVER.arguments).keys() - flags(without.arguments).keys() == {
        "kubelet-client-certificate",
        "kubelet-client-key",
        "kubelet-preferred-address-types",
    }


def test_an_api_server_verifies_tokens_with_all_keys_and_signs_with_one() -> None:
    arguments = flags(API_SERVER.arguments)
    assert arguments["service-account-key-file"] == "/keys/new.pub,/keys/old.pub"
    assert arguments["service-account-signing-key-file"] == "/keys/new.key"


def test_an_api_server_reconciles_its_endpoint_only_if_it_registers_itself() -> None:
    assert flags(API_SERVER.arguments)["endpoint-reconciler-type"] == "none"
    registering = dataclasses.replace(API_SERVER, registers_itself=True)
    assert "endpoint-reconciler-type" not in flags(registering.arguments)


def test_nodes_get_pod_ranges_only_with_a_pod_cidr() -> None:
    assert flags(CONTROLLER_MANAGER.arguments)["allocate-node-cidrs"] == "true"
    without = flags(dataclasses.replace(CONTROLLER_MANAGER, pod_cidr=None).arguments)
    assert without["allocate-node-cidrs"] == "false"
    assert "cluster-cidr" not in without


def test_leader_election_can_be_disabled() -> None:
    for component in (CONTROLLER_MANAGER, SCHEDULER):
        assert flags(component.arguments)["leader-elect"] == "true"
        without = dataclasses.replace(component, elects_leader=False)
        assert flags(without.arguments)["leader-elect"] == "false"


@EVERY
def test_flags_are_unique_and_sorted(component: str) -> None:
    names = [argument.partition("=")[0] for argument in with_extra(component, aaa="1", zzz="2")]
    assert names == sorted(names)
    assert len({*names}) == len(names)
    assert {"--aaa", "--zzz"} <= {*names}


@EVERY
@pytest.mark.parametrize("owned", ["etcd", "kube-apiserver"])
def test_users_cannot_set_flags_that_capelin_owns(component: str, owned: str) -> None:
    flag = sorted(OWNED_FLAGS[component])[0 if owned == "etcd" else -1]
    with pytest.raises(OwnedFlagError, match=f"--{flag} is set by Capelin"):
        check_extra({"v": "2", flag: "1"}, OWNED_FLAGS[component])


@EVERY
def test_users_can_set_all_other_flags(component: str) -> None:
    ours = flags(ALL[component].arguments)
    free = sorted(ours.keys() - OWNED_FLAGS[component] - {"feature-gates"})
    for flag in free:
        changed = dataclasses.replace(ALL[component], extra={flag: "mine"})
        assert flags(changed.arguments) == {**ours, flag: "mine"}


@pytest.mark.parametrize("flag", ["--v", "v=1", "", " "])
def test_check_extra_rejects_invalid_flag_names(flag: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a flag"):
        check_extra({flag: "1"}, frozenset())


def test_feature_gates_are_merged() -> None:
    arguments = flags(with_extra("kube-apiserver", feature_gates="B=true,WatchList=false"))
    assert arguments["feature-gates"] == "B=true,WatchList=false"
    arguments = flags(with_extra("kube-apiserver", feature_gates="B=true"))
    assert arguments["feature-gates"] == "B=true,WatchList=true"
    assert "feature-gates" not in flags(SCHEDULER.arguments)


@pytest.mark.parametrize("gates", ["A", "A=yes", "A=true;B=false"])
def test_invalid_feature_gates_fail(gates: str) -> None:
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
    fetched = await Binaries().fetch(PROGRAMS)
    return {name: binary.path for name, binary in fetched.items()}


@pytest.mark.needs_programs(*PROGRAMS)
@pytest.mark.parametrize("program", PROGRAMS)
async def test_the_real_binaries_accept_all_flags(program: str, paths: dict[str, Path]) -> None:
    async def accepted(*arguments: str) -> bool:
        process = await asyncio.create_subprocess_exec(
            paths[program],
            *arguments,
            "--version",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        return await process.wait() == 0

    assert await accepted(*ALL[program.partition("@")[0]].arguments)
    assert not await accepted("--no-such-flag=1")


@EVERY
def test_owned_flags_are_flags(component: str) -> None:
    assert OWNED_FLAGS[component] >= {
        flag for flag in flags(ALL[component].arguments) if flag.endswith(("-file", "-dir"))
    }
