import json
import logging
import os
import ssl
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from capelin.client import Config, CredentialError, ExecPlugin, Server, User, exec_plugin
from capelin.client.auth import Credentials
from capelin.pki import KeyPair, issue, new_ca

from tests.support.clock import MonotonicClock

NOW = MonotonicClock(0).time_of_day()
V1 = "client.authentication.k8s.io/v1"


def credentials(
    user: User, clock: MonotonicClock | None = None, address: str = "http://api"
) -> Credentials:
    clock = clock or MonotonicClock()
    return Credentials(Config(Server(address), user), clock, clock.time_of_day)


async def authorization(credentials: Credentials) -> str:
    return dict((await credentials.proof()).headers).get("Authorization", "")


async def test_a_token_file_is_read_again_after_ten_seconds(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", MonotonicClock()
    file.write_text("old")
    ours = credentials(User(token_file=file), clock)
    assert await authorization(ours) == "Bearer old"
    file.write_text("new")
    assert await authorization(ours) == "Bearer old"
    clock.advance(10)
    assert await authorization(ours) == "Bearer new"


async def test_the_proof_stays_the_same_while_the_token_does(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", MonotonicClock()
    file.write_text("T")
    ours = credentials(User(token_file=file), clock)
    before = await ours.proof()
    clock.advance(10)
    assert await ours.proof() is before
    assert await ours.after_refusal(before) is None


async def test_a_missing_token_file_fails_first_and_warns_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, clock = tmp_path / "token", MonotonicClock()
    ours = credentials(User(token_file=file), clock)
    with pytest.raises(CredentialError, match=f"{file} cannot be read: No such file"):
        await ours.proof()
    file.write_text("T")
    assert await authorization(ours) == "Bearer T"
    file.unlink()
    clock.advance(10)
    with caplog.at_level(logging.WARNING):
        assert await authorization(ours) == "Bearer T"
    assert "Keeping the current credentials" in caplog.text


@pytest.mark.parametrize("token", ["two\nlines", "smörgås"])
async def test_an_invalid_token_fails_without_being_quoted(token: str) -> None:
    with pytest.raises(CredentialError, match="is not valid") as caught:
        await credentials(User(token=token)).proof()
    assert token not in str(caught.value)


@pytest.fixture(scope="module")
def authority() -> KeyPair:
    return new_ca("test", now=datetime.now(UTC))


@pytest.fixture(scope="module")
def certificate(authority: KeyPair) -> KeyPair:
    return issue(authority, common_name="me", usages=("client",), now=datetime.now(UTC))


async def test_a_certificate_is_replaced_when_both_files_are_renewed(
    tmp_path: Path, authority: KeyPair, certificate: KeyPair
) -> None:
    clock = MonotonicClock()
    pem, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    pem.write_bytes(certificate.certificate_pem)
    key.write_bytes(certificate.private_key_pem)
    ours = credentials(User(certificate=pem, key=key), clock, "https://api")
    first = await ours.proof()
    assert first.tls is not None
    renewed = issue(authority, common_name="me", usages=("client",), now=datetime.now(UTC))
    pem.write_bytes(renewed.certificate_pem)
    clock.advance(10)
    assert await ours.proof() is first
    key.write_bytes(renewed.private_key_pem)
    clock.advance(10)
    assert await ours.proof() is not first


async def test_a_key_of_another_certificate_fails(authority: KeyPair, certificate: KeyPair) -> None:
    user = User(certificate=certificate.certificate_pem, key=authority.private_key_pem)
    with pytest.raises(CredentialError, match="belong together"):
        await credentials(user, address="https://api").proof()


async def test_a_client_certificate_works_without_memfd(
    certificate: KeyPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    user = User(certificate=certificate.certificate_pem, key=certificate.private_key_pem)
    assert (await credentials(user, address="https://api").proof()).tls is not None


async def test_a_ca_must_be_pem() -> None:
    ours = Credentials(Config(Server("https://api", b"nonsense")))
    with pytest.raises(CredentialError, match="certificate authority is not PEM"):
        await ours.proof()


async def test_verification_can_be_skipped() -> None:
    proof = await Credentials(Config(Server("https://api", verify=False))).proof()
    assert proof.tls is not None
    assert proof.tls.verify_mode == ssl.CERT_NONE


Program = Callable[[str], ExecPlugin]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Creates a credential plugin from lines of Python."""

    def make(source: str) -> ExecPlugin:
        file = tmp_path / "program.py"
        file.write_text(f"import json, os, sys, pathlib\nhere = {str(tmp_path)!r}\n{source}")
        return ExecPlugin(V1, sys.executable, (str(file),), {"FLAVOUR": "salt"})

    return make


COUNTING = """
count = pathlib.Path(here, "count")
number = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(number))
status = {"token": f"T{number}", "expirationTimestamp": EXPIRES}
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "status": status}))
"""


async def test_a_plugin_runs_again_when_its_token_expires(program: Program) -> None:
    clock = MonotonicClock()
    clock.now = 0
    expires = (NOW + timedelta(seconds=100)).isoformat().replace("+00:00", "Z")
    ours = credentials(User(exec=program(COUNTING.replace("EXPIRES", repr(expires)))), clock)
    assert await authorization(ours) == "Bearer T1"
    clock.now = 80
    assert await authorization(ours) == "Bearer T1"
    clock.now = 91
    assert await authorization(ours) == "Bearer T2"


async def test_a_plugin_runs_again_when_the_server_rejects_its_token(program: Program) -> None:
    ours = credentials(User(exec=program(COUNTING.replace("EXPIRES", "None"))))
    refused = await ours.proof()
    other = await ours.after_refusal(refused)
    assert other is not None
    assert dict(other.headers)["Authorization"] == "Bearer T2"


async def test_a_plugin_receives_exec_info_and_environment(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "water")
    source = """
pathlib.Path(here, "info").write_text(os.environ["KUBERNETES_EXEC_INFO"])
status = {"token": os.environ["FLAVOUR"] + os.environ["HOME"]}
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "status": status}))
"""
    plugin = program(source)
    server = Server("https://api", b"CA", tls_server_name="kubernetes")
    credential = await exec_plugin.run(plugin, server, b"CA")
    assert credential.token == "saltwater"
    assert json.loads((tmp_path / "info").read_text()) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }


def test_exec_info_contains_the_cluster_on_request() -> None:
    plugin = ExecPlugin(V1, "login", provide_cluster_info=True)
    server = Server("https://api", b"CA", tls_server_name="kubernetes", proxy="http://proxy")
    assert exec_plugin.exec_info(plugin, server, b"CA")["spec"] == {
        "interactive": False,
        "cluster": {
            "server": "https://api",
            "certificate-authority-data": "Q0E=",
            "insecure-skip-tls-verify": False,
            "tls-server-name": "kubernetes",
            "proxy-url": "http://proxy",
        },
    }


async def test_a_plugin_may_return_a_client_certificate(
    program: Program, certificate: KeyPair
) -> None:
    status = {
        "clientCertificateData": certificate.certificate_pem.decode(),
        "clientKeyData": certificate.private_key_pem.decode(),
    }
    output = json.dumps({"apiVersion": V1, "status": status})
    plugin = program(f"print({output!r})")
    proof = await credentials(User(exec=plugin), address="https://api").proof()
    assert proof.tls is not None
    assert proof.headers == ()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("sys.exit(3)", "failed with exit code 3"),
        ("print('no')", "not JSON"),
        ("print('[]')", "not an ExecCredential"),
        ("print(json.dumps({'apiVersion': 'v1', 'status': {'token': 'T'}}))", "another version"),
        (f"print(json.dumps({{'apiVersion': '{V1}'}}))", "without a token"),
        (
            (
                f"status = {{'token': 'T', 'expirationTimestamp': 'soon'}}\n"
                f"print(json.dumps({{'apiVersion': '{V1}', 'status': status}}))"
            ),
            "not a time",
        ),
    ],
)
async def test_a_failing_plugin_is_an_error(program: Program, source: str, message: str) -> None:
    with pytest.raises(CredentialError, match=message):
        await credentials(User(exec=program(source))).proof()


async def test_a_missing_plugin_fails_with_its_install_hint() -> None:
    plugin = ExecPlugin(V1, "/no/such/program", install_hint="Get it from example.com.")
    with pytest.raises(CredentialError, match=r"No such file or directory\. Get it"):
        await credentials(User(exec=plugin)).proof()


async def test_a_hanging_plugin_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_plugin, "_TIMEOUT", 0.5)
    pid = tmp_path / "pid"
    plugin = ExecPlugin(V1, "/bin/sh", ("-c", f"echo $$ > {pid}; exec sleep 99"))
    with pytest.raises(CredentialError, match=r"gave no answer within 0\.5 s"):
        await credentials(User(exec=plugin)).proof()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
