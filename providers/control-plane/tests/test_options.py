"""The options of the provider's manager."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("variable", "value", "advice"),
    [
        ("CAPELIN_BACKENDS", "vms", "write pods or processes"),
        ("CAPELIN_KMS_PLUGINS", "vault=/x", "write vault=/run/kms/vault/plugin.sock"),
        ("CAPELIN_ENDPOINT_NETWORKS", "everywhere", "everywhere"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, advice: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "capelin_control_plane"],
        env={**os.environ, variable: value},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode != 0
    assert ended.stderr.startswith(f"capelin-control-plane: {variable}: ")
    assert advice in ended.stderr
    assert "Traceback" not in ended.stderr
