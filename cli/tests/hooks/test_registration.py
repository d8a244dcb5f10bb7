"""Registration of extensions: the request, and the wait for discovery."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin.api.capi import ExtensionConfig, ExtensionHandler
from capelin.errors import InvalidInputError, NotReadyError
from capelin.pki import new_ca
from capelin_cli.hooks.registration import (
    Registration,
    extension_config,
    not_discovered,
    write_certificate,
)
from capelin_embedded.management import Environment
from cryptography import x509

URL = "https://localhost:9443"


def test_an_extension_is_registered_by_its_url_with_its_settings() -> None:
    registration = Registration("mine", URL, "default", settings=("a=b", "c=d=e"))
    config = extension_config(registration, b"ca")
    assert config.name == "mine"
    assert config.spec.client_config.url == URL
    assert config.spec.client_config.ca_bundle == b"ca"
    assert config.spec.settings == {"a": "b", "c": "d=e"}


@pytest.mark.parametrize(
    ("url", "setting", "words"),
    [("http://localhost", "a=b", "over HTTPS only"), (URL, "a", "Write it as NAME=VALUE")],
)
def test_an_invalid_registration_is_rejected(url: str, setting: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        extension_config(Registration("mine", url, "default", settings=(setting,)), b"")


def config_with(*conditions: dict[str, object]) -> ExtensionConfig:
    moment = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"conditions": [{**moment, "type": "Discovered", **fields} for fields in conditions]}
    return ExtensionConfig.read({"metadata": {"name": "mine", "generation": 2}, "status": status})


def test_an_extension_is_discovered_when_its_current_handlers_are_listed() -> None:
    assert not_discovered(config_with()) == "Cluster API has not called it yet"
    refused: dict[str, object] = {"status": "False", "reason": "X", "message": "refused"}
    assert not_discovered(config_with(refused)) == "refused"
    known: dict[str, object] = {"status": "True", "reason": "Y", "message": ""}
    assert not_discovered(config_with({**known, "observedGeneration": 1})) is not None
    assert not_discovered(config_with({**known, "observedGeneration": 2})) is None


def test_the_registration_waits_for_new_handlers_of_an_unchanged_extension() -> None:
    config = config_with({"status": "True", "reason": "Y", "message": "", "observedGeneration": 2})
    status = config.status.dump()
    hook = {"apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "hook": "BeforeClusterCreate"}
    defaults = {"timeoutSeconds": 10, "failurePolicy": "Fail"}
    status["handlers"] = [{"name": "gate.mine", "requestHook": hook, **defaults}]
    config.status = type(config.status).read(status)
    gate = ExtensionHandler.read({"name": "gate", "requestHook": hook})
    assert not_discovered(config, [gate]) is None
    for change in ({"name": "second"}, {"timeout_seconds": 5}, {"failure_policy": "Ignore"}):
        assert not_discovered(config, [gate.model_copy(update=change)]) == (
            "Cluster API has not noticed its present handlers yet"
        )


def test_certificate_files_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    environment = Environment(tmp_path / "capelin" / "lab")
    environment.make_folders()
    with pytest.raises(NotReadyError, match="no certificates yet"):
        write_certificate("lab", tmp_path / "certificates")
    ca = new_ca("test", now=datetime.now(UTC))
    environment.authority.write_bytes(ca.certificate_pem)
    environment.authority.with_suffix(".key").write_bytes(ca.private_key_pem)
    for path in write_certificate("lab", tmp_path / "certificates"):
        assert path.stat().st_mode & 0o077 == 0
    written = (tmp_path / "certificates" / "tls.crt").read_bytes()
    names = x509.load_pem_x509_certificate(written).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert "localhost" in names.value.get_values_for_type(x509.DNSName)
