"""The commands of the pages for operators, typed as they are."""

import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin.api.capi import Cluster
from capelin.api.core import ConfigMap, Lease, Node, Secret
from capelin.client import Client, Config, Unauthorized
from capelin.contract import KUBECONFIG_KEY, find_condition
from capelin.testing.waiting import until
from capelin_control_plane.api import CapelinControlPlane, EncryptionStatus
from capelin_embedded.binaries import TESTED_KUBERNETES, Binaries

from tests.e2e.install_page import CommandFailedError, Shell, sections
from tests.support.kms_plugin import KmsPlugin

from .homes import Home
from .kubeadm_machine import is_possible, kubeadm_machine
from .test_recovery import lose

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
RECOVER, LEAVE, ENCRYPTION, ROTATE, SLEEP = (
    {section.title: section.commands for section in sections((PAGES / page).read_text())}
    for page in ("recover.md", "leave.md", "encryption.md", "rotate.md", "sleep.md")
)
VERSION = TESTED_KUBERNETES[-1]
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
PROGRAMS = ("etcd", "kubectl", *(f"{name}@{VERSION}" for name in (*SERVERS, "kubeadm")))
_KINDS = "namespaces,nodes,configmaps,secrets,serviceaccounts,services,deployments,clusterroles"
_LINE = r"{.kind}/{.metadata.namespace}/{.metadata.name} {.metadata.uid}{'\n'}"
OBJECTS = f'kubectl get {_KINDS} -A -o "jsonpath={{range .items[*]}}{_LINE}{{end}}"'
pytestmark = [pytest.mark.timeout(900), pytest.mark.needs_programs(*PROGRAMS)]


@pytest.fixture
async def variables(home: Home, tmp_path: Path) -> Mapping[str, str]:
    """The variables of a user with `capelin`, kubectl, kubeadm and the components on the PATH."""
    programs, user = tmp_path / "programs", tmp_path / "user"
    programs.mkdir()
    user.mkdir()
    for program, binary in (await Binaries().fetch(PROGRAMS)).items():
        (programs / program.partition("@")[0]).symlink_to(binary.path)
    path = f"{programs}:{Path(sys.executable).parent}:{home.variables['PATH']}"
    return {**home.variables, "PATH": path}


async def up(home: Home) -> None:
    ended = await home.capelin("up", "--workers", "1", "--kubernetes-version", VERSION)
    assert ended.code == 0, ended.err


def management_client(home: Home) -> Client:
    return Client(Config.from_kubeconfig(home.environment().kubeconfig), manager="test")


async def kubeconfig(home: Home) -> bytes:
    """The kubeconfig of the demo cluster's administrator."""
    async with management_client(home) as client:
        secret = await client.get(Secret, "demo-kubeconfig", "default")
    return secret.data[KUBECONFIG_KEY]


async def has_reason(client: Client, type_: str, reason: str) -> bool:
    (control_plane,) = (await client.list(CapelinControlPlane, "default")).items
    conditions = control_plane.status.conditions if control_plane.status else []
    condition = find_condition(conditions, type_)
    return condition is not None and condition.reason == reason


async def test_a_control_plane_is_restored_from_the_backups_of_the_page(
    home: Home, variables: Mapping[str, str], tmp_path: Path
) -> None:
    await up(home)
    shell = Shell(tmp_path / "user", variables)
    async with Client(Config.from_kubeconfig(await kubeconfig(home)), manager="test") as workload:
        await workload.apply(ConfigMap.of("kept", "default"))
    await shell.run(RECOVER["On processes"])

    async with management_client(home) as management:
        await management.delete(Secret, "demo-ca", "default")
        await until(lambda: has_reason(management, "CertificatesAvailable", "CertificatesMissing"))
        await shell.run(RECOVER["Restore a CA"])
        await until(
            lambda: has_reason(management, "CertificatesAvailable", "CertificatesAvailable")
        )

        state = home.environment().workloads / "control-plane-capelin"
        (folder,) = state.glob("127.*")
        await lose(folder, "etcd-0")
        await until(lambda: has_reason(management, "EtcdClusterAvailable", "QuorumLost"))
    # Only a terminal can confirm.
    await shell.run(RECOVER["Recover from a copy"].replace(" --data", " --yes --data"))
    async with Client(Config.from_kubeconfig(await kubeconfig(home)), manager="test") as workload:
        assert await workload.find(ConfigMap, "kept", "default") is not None


@pytest.mark.skipif(not is_possible(), reason="this user cannot create namespaces")
async def test_kubeadm_takes_over_a_control_plane_with_the_commands_of_the_page(
    home: Home, variables: Mapping[str, str], tmp_path: Path
) -> None:
    await up(home)
    old, new = tmp_path / "user", tmp_path / "machine"
    (old / "demo.kubeconfig").write_bytes(await kubeconfig(home))
    shell = Shell(old, variables)
    with_old_kubeconfig = "export KUBECONFIG=demo.kubeconfig\n"
    await shell.run(with_old_kubeconfig + "kubectl create configmap kept --from-literal=key=value")
    objects = set((await shell.run(OBJECTS)).splitlines())
    # The controller manager creates the ServiceAccount some seconds after the API server is ready.
    await shell.run("kubectl wait --for=create --timeout=60s serviceaccount/default")
    token = (await shell.run("kubectl create token default")).strip()
    assert any(line.startswith("Node/") for line in objects)
    await shell.run(ENCRYPTION["Enable"] + ENCRYPTION["Disable"])
    await shell.run(LEAVE["Export the control plane"])

    async with kubeadm_machine(new, variables) as machine:
        for copied in ("leaving", "demo.kubeconfig"):
            await Shell(new, variables).run(f"cp -r {old / copied} .")
        shell = Shell(new, variables, machine.wrapper)
        await shell.run(LEAVE["Start it with kubeadm"])
        for component in ("etcd", *SERVERS):
            await machine.start(component)

        async def is_ready() -> bool:
            try:
                await shell.run(with_old_kubeconfig + "kubectl get --raw=/readyz")
            except CommandFailedError:
                return False
            return True

        await until(is_ready)
        assert objects - set((await shell.run(OBJECTS)).splitlines()) == set()
        await shell.run(LEAVE["Complete the move"])
        await machine.start("etcd")
        await until(is_ready)
        assert objects - set((await shell.run(OBJECTS)).splitlines()) == set()
        assert await shell.run("kubectl get configmap kept -o 'jsonpath={.data.key}'") == "value"

        # The tokens and the CA are the old ones, and the new controllers work.
        server = '--server="https://$HOST:$PORT" --certificate-authority=leaving/pki/ca.crt'
        user = await shell.run(
            f"KUBECONFIG=/dev/null kubectl {server} --token={token} auth whoami"
            " -o 'jsonpath={.status.userInfo.username}'"
        )
        assert user == "system:serviceaccount:default:default"
        with_new_kubeconfig = "export KUBECONFIG=/etc/kubernetes/admin.conf\n"
        await shell.run(with_new_kubeconfig + "kubectl create deployment new --image=nginx")
        listing = "kubectl get replicasets -l app=new -o name"
        await until(lambda: shell.run(listing), lambda names: names.startswith("replicaset"))
        assert [each.returncode for each in machine.components.values()] == [None] * 4


async def test_encryption_is_enabled_rotated_and_disabled_as_on_the_page(
    home: Home, variables: Mapping[str, str], tmp_path: Path
) -> None:
    await up(home)
    shell = Shell(tmp_path / "user", variables)
    keys: set[str | None] = set()

    async def has_another_key() -> bool:
        status = await encryption_status(home)
        return status is not None and status.stage is None and status.key not in keys

    await shell.run(ENCRYPTION["Enable"])
    async with management_client(home) as management:
        await until(has_another_key, within=120)
        status = await encryption_status(home)
        assert status is not None
        keys.add(status.key)
        assert f'"key":"{status.key}"' in await shell.run(ENCRYPTION["Verify"])
        await shell.run(ENCRYPTION["Rotate"])
        await until(has_another_key, within=300)

        await shell.run(ENCRYPTION["Lost keys"])
        await management.delete(Secret, "demo-encryption", "default")
        await until(lambda: has_reason(management, "EncryptionAtRest", "EncryptionKeysMissing"))
        await shell.run("kubectl apply -f encryption.yaml")
        await until(lambda: has_reason(management, "EncryptionAtRest", "EncryptionAtRest"))

        await shell.run(ENCRYPTION["Disable"])

        async def is_off() -> bool:
            return await encryption_status(home) is None

        await until(is_off, within=300)


async def test_a_kms_plugin_encrypts_as_on_the_page(
    home: Home, variables: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="kms-") as folder:
        plugin = KmsPlugin(Path(folder))
        plugin.use("first")
        await plugin.start()
        monkeypatch.setenv("CAPELIN_KMS_PLUGINS", f"vault={plugin.socket}")
        try:
            await up(home)
            shell = Shell(tmp_path / "user", variables)
            await shell.run(ENCRYPTION["Enable"])
            await shell.run(ENCRYPTION["Key management service"])
            status = await encryption_status(home)
            assert status is not None
            assert status.provider == "kms"

            async def is_settled() -> bool:
                status = await encryption_status(home)
                return status is not None and status.stage is None

            await until(is_settled, within=300)
            assert "sha256:" in await until(
                lambda: shell.run(ENCRYPTION["Another key of the plugin"]), within=420
            )
        finally:
            await plugin.stop()


async def test_authorities_are_rotated_as_on_the_page(
    home: Home, variables: Mapping[str, str], tmp_path: Path
) -> None:
    await up(home)
    shell = Shell(tmp_path / "user", variables)
    old = await kubeconfig(home)
    begun = await shell.run(ROTATE["Begin"])
    assert "Waiting for tokens of pods, until " in begun
    assert "capelin rotate cluster demo --drop" in begun
    message = await shell.run(ROTATE["Clients"])
    assert "a confirmation that no copy of a kubeconfig is in use" in message
    assert "Node" not in message, "no kubelet has a certificate"
    async with Client(Config.from_kubeconfig(old), manager="test") as workload:
        (before,) = (await workload.list(Node)).items
    assert "still trust the old CA" in await shell.run(ROTATE["End"])
    ended = datetime.now(UTC)

    async with Client(Config.from_kubeconfig(await kubeconfig(home)), manager="test") as workload:

        async def has_heartbeats() -> bool:
            lease = await workload.get(Lease, before.name, "kube-node-lease")
            return lease.spec.renew_time is not None and lease.spec.renew_time > ended

        # KWOK gets the new kubeconfig within a minute.
        await until(has_heartbeats, within=180)
        (after,) = (await workload.list(Node)).items
        assert after.uid == before.uid
    async with management_client(home) as management:

        async def is_connected() -> bool:
            cluster = await management.get(Cluster, "demo", "default")
            probe = find_condition(cluster.status.conditions, "RemoteConnectionProbe")
            return probe is not None and probe.status == "True"

        await until(is_connected)
    with pytest.raises(Unauthorized):
        async with Client(Config.from_kubeconfig(old), manager="test") as workload:
            await workload.list(Node)


async def encryption_status(home: Home) -> EncryptionStatus | None:
    async with management_client(home) as client:
        (control_plane,) = (await client.list(CapelinControlPlane, "default")).items
    return control_plane.status and control_plane.status.encryption


async def test_a_cluster_sleeps_and_wakes_with_the_commands_of_the_page(
    home: Home, variables: Mapping[str, str], tmp_path: Path
) -> None:
    await up(home)
    shell = Shell(tmp_path / "user", variables)
    async with Client(Config.from_kubeconfig(await kubeconfig(home)), manager="test") as workload:
        await workload.apply(ConfigMap.of("kept", "default"))
        output = await shell.run(SLEEP["On request"])
        assert "the control plane sleeps" in " ".join(output.split())
        assert await workload.find(ConfigMap, "kept", "default") is not None
    ended = await home.capelin("sleep", "cluster", "demo")
    assert ended.code == 0, ended.err
    ended = await home.capelin("status", "--exit-code")
    assert ended.code == 0, ended.out
    assert "Cluster/demo" in ended.out
