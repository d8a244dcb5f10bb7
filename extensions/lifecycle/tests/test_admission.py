"""Admission policies from the rules of policies."""

from pathlib import Path

import pytest
from capelin.client import Client
from capelin.runtime.server import read_options
from capelin.yaml import read_all_yaml
from capelin_lifecycle.__main__ import LifecycleOptions, main, print_admission_policies
from capelin_lifecycle.admission import NotAdmissibleError, admission_policies
from capelin_lifecycle.engine import EngineOptions
from capelin_lifecycle.hooks import NAME
from capelin_lifecycle.sandbox.pool import MIB, Budget

from .factories import policy

RULES = [
    {"expression": "object.metadata.name.startsWith('now-')", "message": "a name"},
    {"expression": "now > timestamp('2026-01-01T00:00:00Z')", "message": "a time"},
]


def test_rules_about_only_the_object_become_an_admission_policy() -> None:
    made = policy(classes=["small"], action={"validate": {"rules": RULES}})
    admission, binding = admission_policies(made)
    assert [each["message"] for each in admission["spec"]["validations"]] == ["a name"]
    assert len(admission["spec"]["matchConditions"]) == 2
    assert binding["spec"]["policyName"] == admission["metadata"]["name"] == "lifecycle-team-p"
    labels = {"kubernetes.io/metadata.name": "team"}
    assert binding["spec"]["matchResources"]["namespaceSelector"] == {"matchLabels": labels}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"action": {"validate": {"rules": RULES[1:]}}},
        {"action": {"validate": {"rules": RULES}}, "hook": "ValidateTopology"},
    ],
)
def test_a_policy_without_such_rules_is_not_admissible(spec: dict[str, object]) -> None:
    with pytest.raises(NotAdmissibleError):
        admission_policies(policy("p", namespace="team", **spec))


def test_the_command_prints_admission_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "kind: LifecyclePolicy\nmetadata: {name: a, namespace: team}\n"
        "spec: {hook: BeforeClusterCreate, action: {validate: {rules:"
        " [{expression: 'true', message: m}]}}}\n"
    )
    assert print_admission_policies(file) == 0
    printed = read_all_yaml(capsys.readouterr().out)
    assert [each["kind"] for each in printed] == [
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]
    assert print_admission_policies(tmp_path / "missing.yaml") == 1
    assert "missing.yaml" in capsys.readouterr().err


@pytest.mark.usefixtures("provider_crds")
async def test_the_api_server_accepts_the_admission_policies(client: Client) -> None:
    made = policy(classes=["small"], action={"validate": {"rules": RULES}})
    for manifest in admission_policies(made):
        await client.create(manifest, dry_run=True)


def test_help_names_the_options_and_the_other_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["lifecycle", "--help"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert "admission-policy FILE" in shown
    assert {"--port", "--registries"} <= {*shown.split()}


def test_options_of_the_engine_and_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--port=1", "--leader-elect", "--extension-config", "x"]
    options = read_options(LifecycleOptions, NAME, flags)
    assert (options.engine, options.port) == (
        EngineOptions(leader_elect=True, extension_config="x"),
        1,
    )
    assert options.expressions == Budget(0.1, 50 * MIB)
    monkeypatch.setenv("CAPELIN_LEADER_ELECT", "true")
    monkeypatch.setenv("CAPELIN_EXPRESSION_CPU_MILLISECONDS", "200")
    options = read_options(LifecycleOptions, NAME, ["--expression-memory-mebibytes=64"])
    assert options.engine == EngineOptions(leader_elect=True)
    assert options.expressions == Budget(0.2, 64 * MIB)


@pytest.mark.parametrize(
    ("flag", "bounds"),
    [
        ("--expression-cpu-milliseconds=0", "from 10 to 10000"),
        ("--expression-memory-mebibytes=99999", "from 16 to 1024"),
    ],
)
def test_a_budget_without_bounds_is_rejected(
    flag: str, bounds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read_options(LifecycleOptions, NAME, [flag])
    assert bounds in capsys.readouterr().err
