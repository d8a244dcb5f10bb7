"""The ExtensionConfig after `clusterctl init --target-namespace`."""

from typing import Any

import pytest
from capelin.api.capi import ExtensionConfig
from capelin_lifecycle.reconcilers.registration import namespace_patch

SECRET = "runtime.cluster.x-k8s.io/inject-ca-from-secret"


def config(namespace: str | None, secret: str = "") -> ExtensionConfig:
    service = {"namespace": namespace, "name": "lifecycle", "port": 443}
    client: dict[str, Any] = {"service": service} if namespace else {"url": "https://127.0.0.1"}
    annotations = {SECRET: secret} if secret else {}
    return ExtensionConfig.read(
        {
            "metadata": {"name": "lifecycle", "annotations": annotations},
            "spec": {"clientConfig": client},
        }
    )


def test_a_wrong_namespace_is_corrected_in_service_and_annotation() -> None:
    assert namespace_patch(config("usual", "usual/certificate"), "own") == {
        "spec": {"clientConfig": {"service": {"namespace": "own"}}},
        "metadata": {"annotations": {SECRET: "own/certificate"}},
    }
    assert namespace_patch(config("own", "usual/certificate"), "own") == {
        "metadata": {"annotations": {SECRET: "own/certificate"}}
    }


@pytest.mark.parametrize("right", [config("own", "own/certificate"), config("own"), config(None)])
def test_a_correct_or_external_registration_is_unchanged(right: ExtensionConfig) -> None:
    assert namespace_patch(right, "own") is None
