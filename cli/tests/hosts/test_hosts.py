"""Hosts as the command imports, checks, lists and power cycles them."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from capelin.api.core import Secret
from capelin.errors import InvalidInputError, MissingError
from capelin.testing.fake_client import FakeClient
from capelin_cli.hosts import verbs
from capelin_cli.hosts.host_file import HostDefaults, read_host_file, read_labels
from capelin_cli.hosts.verbs import check_hosts, import_hosts, list_hosts, power_cycle_hosts
from capelin_machine_pool.bootstrap import HostState, TransportError
from capelin_machine_pool.hosts import connections
from capelin_machine_pool.hosts.api import POWER_CYCLE_ANNOTATION, CapelinHost
from capelin_machine_pool.hosts.facts import HostFacts

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHRlc3RrZXl0ZXN0a2V5dGVzdGtleXRlc3RrZXl0ZXN0"
DEFAULTS = HostDefaults(namespace="team", credentials="ssh")
CSV = f"""\
name,address,port,user,hostKey,failureDomain,labels,taints
rack-1,10.0.0.7,,admin,{KEY} rack-1,east,role=worker;rack=1,gpu=yes:NoSchedule;old:NoExecute
rack-2,10.0.0.8,2222,,{KEY},,,
"""
YAML = f"""\
- name: rack-1
  address: 10.0.0.7
  user: admin
  hostKey: {KEY} rack-1
  failureDomain: east
  labels: {{role: worker, rack: "1"}}
  taints: [{{key: gpu, value: "yes", effect: NoSchedule}}, {{key: old, effect: NoExecute}}]
- {{name: rack-2, address: 10.0.0.8, port: 2222, hostKey: [{KEY}]}}
"""


def write(folder: Path, text: str, name: str = "hosts.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_csv_and_yaml_describe_the_same_hosts(tmp_path: Path) -> None:
    from_csv = read_host_file(write(tmp_path, CSV, "hosts.csv"), DEFAULTS)
    assert from_csv == read_host_file(write(tmp_path, YAML), DEFAULTS)
    first, second = from_csv
    assert (first.name, first.namespace, first.spec.user) == ("rack-1", "team", "admin")
    assert first.metadata.labels == {"role": "worker", "rack": "1"}
    assert [taint.key for taint in first.spec.taints] == ["gpu", "old"]
    assert first.spec.host_keys == [f"{KEY} rack-1"]
    assert (second.spec.port, second.spec.user) == (2222, "root")
    assert second.spec.failure_domain is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- {name: a}", "row 1 (a): it has no address"),
        ("- {address: a}", "row 1: it has no name"),
        ("- {name: a, address: b}", "row 1 (a): it has no hostKey: run ssh-keyscan"),
        ("- {name: a, address: b, bastion: c}", "row 1 (a): unknown bastion"),
        (
            f"- {{name: a, address: b, hostKey: {KEY}, port: x}}",
            "row 1 (a): port: Input should be a valid integer",
        ),
        (f"- {{name: a, address: b, hostKey: {KEY}, port: 70000}}", "row 1 (a): port: "),
        (f"- {{name: a, address: b, hostKey: {KEY}, labels: worker}}", "is not a label"),
        (
            f"- {{name: a, address: b, hostKey: {KEY}, maintenance: soon}}",
            "row 1 (a): maintenance: ",
        ),
        (f"- {{name: a, address: b, hostKey: {KEY}, taints: gpu}}", "is not a taint"),
        (f"- {{name: a, address: b, hostKey: {KEY}, taints: 'gpu:Never'}}", "effect"),
        ("- {name: a, address: b, hostKey: secret}", "row 1 (a): hostKeys"),
        (
            f"- {{name: a, address: b, hostKey: {KEY}}}\n- {{name: a, address: b, hostKey: {KEY}}}",
            "a is the name of 2 hosts; b:22 is the address of 2 hosts",
        ),
        ("name: a", "is not a list of hosts"),
        ("[]", "has 0 hosts"),
        ("- {", "is not YAML"),
    ],
)
def test_invalid_hosts_are_reported_by_row(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_host_file(write(tmp_path, text), DEFAULTS)
    assert problem in str(caught.value)


def test_all_wrong_rows_are_reported_together(tmp_path: Path) -> None:
    rows = "\n".join(f"- {{name: a{number}}}" for number in range(12))
    with pytest.raises(InvalidInputError) as caught:
        read_host_file(write(tmp_path, rows), DEFAULTS)
    assert caught.value.reason.count("it has no address") == 10
    assert caught.value.reason.endswith("; ....")


def test_labels_are_read() -> None:
    assert read_labels("role=worker; rack=1,") == {"role": "worker", "rack": "1"}
    with pytest.raises(ValueError, match="write key=value"):
        read_labels("role")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """A client of the environment's API server."""
    client = FakeClient(CapelinHost)

    @asynccontextmanager
    async def opened(_: object) -> AsyncGenerator[FakeClient]:
        yield client

    def named(name: str) -> str:
        return name

    monkeypatch.setattr(verbs, "find_environment", named)
    monkeypatch.setattr(verbs, "client_of", opened)
    return client


async def test_import_creates_and_updates_hosts(
    client: FakeClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = write(tmp_path, "a private key", "id")
    file = write(tmp_path, YAML)
    await import_hosts("default", file, DEFAULTS, key, dry_run=False)
    assert "2 hosts imported" in capsys.readouterr().out
    secret = await client.get(Secret, "ssh", "team")
    assert (secret.type, secret.data) == (
        "kubernetes.io/ssh-auth",
        {"ssh-privatekey": b"a private key"},
    )
    claim = {
        "id": "1",
        "machine": "m",
        "cluster": "c",
        "providerID": "capelin:///a",
        "bootstrapSecret": "data",
    }
    await client.patch(CapelinHost.resource, "rack-2", "team", {"spec": {"claim": claim}})
    write(tmp_path, YAML.replace("10.0.0.8", "10.0.0.9"))
    await import_hosts("default", file, DEFAULTS, None, dry_run=False)
    host = await client.get(CapelinHost, "rack-2", "team")
    assert host.spec.address == "10.0.0.9"
    assert host.spec.claim is not None


async def test_learned_key_survives_another_import(client: FakeClient, tmp_path: Path) -> None:
    defaults = HostDefaults(namespace="team", credentials="ssh", trust_on_first_use=True)
    file = write(tmp_path, "- {name: a, address: b}")
    await import_hosts("default", file, defaults, None, dry_run=False)
    patch = {"spec": {"hostKeys": [KEY]}}
    await client.patch(CapelinHost.resource, "a", "team", patch)
    await import_hosts("default", file, defaults, None, dry_run=False)
    assert (await client.get(CapelinHost, "a", "team")).spec.host_keys == [KEY]


async def test_another_import_keeps_the_fields_that_the_file_does_not_have(
    client: FakeClient, tmp_path: Path
) -> None:
    file = write(tmp_path, f"name,address,hostKey,maintenance\na,b,{KEY},\n", "hosts.csv")
    await import_hosts("default", file, DEFAULTS, None, dry_run=False)
    changed = {"maintenance": True, "port": 2222, "user": "admin", "trustOnFirstUse": True}
    kind = CapelinHost.resource
    await client.patch(kind, "a", "team", {"spec": changed})
    await import_hosts("default", file, DEFAULTS, None, dry_run=False)
    spec = (await client.get(CapelinHost, "a", "team")).spec.dump()
    assert {name: spec[name] for name in changed} == changed


async def test_import_takes_no_field_of_another_owner(client: FakeClient, tmp_path: Path) -> None:
    file = write(tmp_path, f"- {{name: a, address: b, hostKey: {KEY}, maintenance: false}}")
    await import_hosts("default", file, DEFAULTS, None, dry_run=False)
    patch = {"spec": {"maintenance": True}}
    await client.patch(CapelinHost.resource, "a", "team", patch)
    with pytest.raises(InvalidInputError, match="has another owner") as caught:
        await import_hosts("default", file, DEFAULTS, None, dry_run=False)
    assert "capelin" in caught.value.reason
    assert (await client.get(CapelinHost, "a", "team")).spec.maintenance


async def test_dry_run_changes_nothing(
    client: FakeClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await import_hosts("default", write(tmp_path, YAML), DEFAULTS, None, dry_run=True)
    assert "2 hosts are valid" in capsys.readouterr().out
    assert (await client.list(CapelinHost, "team")).items == []


@pytest.fixture
def connected(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> Callable[[HostFacts | TransportError], None]:
    """Hosts rack-1 and rack-2, and a way to set the facts of all hosts."""
    private = asyncssh.generate_private_key("ssh-ed25519")  # pyright: ignore[reportUnknownMemberType]
    public = " ".join(private.export_public_key().decode().split()[:2])
    data = {"ssh-privatekey": private.export_private_key()}
    client.add(Secret.of("ssh", "team", data=data))
    for name in ("rack-1", "rack-2"):
        spec = {
            "address": "10.0.0.7",
            "credentials": {"secretName": "ssh"},
            "hostKeys": [public],
        }
        client.add(
            CapelinHost.read({"metadata": {"name": name, "namespace": "team"}, "spec": spec})
        )

    @asynccontextmanager
    async def connection(*_: object) -> AsyncGenerator[None]:
        yield

    def answer(facts: HostFacts | TransportError) -> None:
        async def observed(_: object) -> Any:
            if isinstance(facts, TransportError):
                raise facts
            return facts

        async def state(_: object) -> HostState:
            return HostState(boot_id="boot", hostname="rack")

        monkeypatch.setattr(connections, "connect_ssh", connection)
        monkeypatch.setattr(verbs, "observe", state)
        monkeypatch.setattr(verbs, "observe_facts", observed)

    return answer


@pytest.mark.usefixtures("client")
async def test_check_explains_why_hosts_are_unfit(
    connected: Callable[[HostFacts | TransportError], None], capsys: pytest.CaptureFixture[str]
) -> None:
    connected(HostFacts(swap=True, kubelet="v1.34.4"))
    assert not await check_hosts("default", "team", ["rack-2"], None, "json")
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["name"], result["result"]) == ("rack-2", "unfit")
    assert "swap is on: run swapoff -a and remove it from /etc/fstab" in result["problems"]
    connected(TransportError("10.0.0.7:22 does not answer in time"))
    assert not await check_hosts("default", "team", (), None, "text")
    assert capsys.readouterr().out.count("10.0.0.7:22 does not answer in time") == 2
    with pytest.raises(MissingError, match="Hosts there: rack-1, rack-2"):
        await check_hosts("default", "team", ["rack-3"], None, "text")


async def test_hosts_are_listed(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "HostUnreachable",
        "message": "10.0.0.7:22 does not answer in time",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    spec = {
        "address": "10.0.0.7",
        "credentials": {"secretName": "ssh"},
        "hostKeys": [KEY],
        "claim": {
            "id": "1",
            "machine": "workers-1",
            "cluster": "c",
            "providerID": "capelin:///a",
            "bootstrapSecret": "data",
        },
    }
    status = {"phase": "Cleaning", "conditions": [condition], "capacity": {"cpu": "4"}}
    metadata = {"name": "rack-1", "namespace": "team"}
    client.add(CapelinHost.read({"metadata": metadata, "spec": spec, "status": status}))
    await list_hosts("default", None, "wide")
    header, row = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["NAMESPACE", "NAME", "PHASE", "MACHINE"]
    for text in ("rack-1", "Cleaning", "workers-1", "10.0.0.7:22", "HostUnreachable", "in time"):
        assert text in row


def add_host(client: FakeClient, name: str, **spec: Any) -> None:
    fields = {"address": "10.0.0.7", "credentials": {"secretName": "ssh"}, "hostKeys": [KEY]}
    metadata = {"name": name, "namespace": "team"}
    client.add(CapelinHost.read({"metadata": metadata, "spec": {**fields, **spec}}))


async def is_requested(client: FakeClient, name: str) -> bool:
    host = await client.get(CapelinHost, name, "team")
    return POWER_CYCLE_ANNOTATION in host.metadata.annotations


async def test_a_request_power_cycles_all_hosts_or_none(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = {
        "id": "1",
        "machine": "workers-1",
        "cluster": "c",
        "providerID": "capelin:///a",
        "bootstrapSecret": "data",
    }
    add_host(client, "free", power={"method": "SSH"})
    add_host(client, "used", power={"method": "SSH"}, claim=claim)
    add_host(client, "plain")

    async def cycle(*names: str, in_use: bool = False) -> None:
        await power_cycle_hosts("default", "team", names, in_use=in_use)

    with pytest.raises(InvalidInputError, match=r"plain cannot be power cycled.*spec\.power"):
        await cycle("free", "plain")
    with pytest.raises(InvalidInputError, match=r"used is in use.*workers-1.*--in-use"):
        await cycle("free", "used")
    with pytest.raises(MissingError, match="Hosts there: free, plain, used"):
        await cycle("free", "other")
    assert not await is_requested(client, "free")
    await cycle("free", "used", in_use=True)
    assert await is_requested(client, "free")
    assert await is_requested(client, "used")
    assert "The provider power cycles free, used" in capsys.readouterr().out
