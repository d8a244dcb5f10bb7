"""The hooks that compute: patches, checks of topologies, and upgrade plans."""

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from capelin.runtime import AnyHook, Failure
from capelin.runtime.fixtures import sample_cluster
from capelin.runtime.messages import read
from capelin.runtime.v1alpha1 import (
    GeneratePatches,
    GeneratePatchesRequest,
    GenerateUpgradePlan,
    GenerateUpgradePlanRequest,
    ValidateTopology,
    ValidateTopologyRequest,
)
from capelin.testing.extensions import fake_request
from capelin_lifecycle.actions.topology import (
    check_topology,
    discovered_variables,
    generated_patches,
    patches_expressions,
    patches_problems,
    upgrade_plan,
    upgrade_steps,
)
from capelin_lifecycle.api.actions import PatchVersion, UpgradePlan
from capelin_lifecycle.sandbox.pool import SANDBOX

from .factories import known

NOW = datetime(2026, 12, 21, tzinfo=UTC)
COMMANDS = "/spec/template/spec/preKubeadmCommands"


def request(hook: AnyHook, **variables: Any) -> Any:
    scene = sample_cluster(variables=variables)
    return read(hook.request_type(), fake_request(hook, scene))


async def patches(*templates: dict[str, Any], **variables: Any) -> dict[str, Any]:
    """The patches of a version by the templates that they are for."""
    asked: GeneratePatchesRequest = request(GeneratePatches, **variables)
    version = PatchVersion.read({"name": "v1", "templates": list(templates)})
    policy = known(hook="GeneratePatches")
    answer = await generated_patches(policy, version, asked)
    assert answer == await generated_patches(policy, version, asked)
    names = {
        item.uid: f"{item.object['kind']} of {item.holder_reference.kind}" for item in asked.items
    }
    return {names[item.uid]: orjson.loads(item.patch) for item in answer.items}


def template(*operations: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"kind": "KubeadmConfigTemplate", "operations": list(operations), **fields}


async def test_patches_apply_only_to_the_templates_that_a_policy_selects() -> None:
    append = {"op": "Append", "path": COMMANDS, "valueFrom": "'proxy ' + variables.proxy"}
    added = [{"op": "add", "path": COMMANDS, "value": ["proxy http://p"]}]
    both = template(append, when="'proxy' in variables")
    deployments, pools = (
        f"KubeadmConfigTemplate of {kind}" for kind in ("MachineDeployment", "MachinePool")
    )
    assert await patches(both, proxy="http://p") == {deployments: added, pools: added}
    assert await patches(both) == {}
    only = {**both, "usedBy": ["MachinePools"]}
    assert await patches(only, proxy="http://p") == {pools: added}
    default = await patches({**both, "classes": ["def*"]}, proxy="http://p")
    assert default.keys() == {deployments, pools}
    assert await patches({**both, "classes": ["gpu-*"]}, proxy="http://p") == {}
    assert await patches({**both, "apiVersion": "example.com/v1"}, proxy="http://p") == {}


async def test_patches_of_many_templates_have_a_limit_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies = "[1, 2, 3, 4, 5, 6, 7, 8, 9].map(n, variables.text)"
    large = template({"path": "/spec/template/spec/files", "valueFrom": copies})
    text = "x" * 30_000
    assert len(await patches(large, text=text)) == 2
    monkeypatch.setattr("capelin_lifecycle.actions.topology._MAX_PATCHES", 400_000)
    with pytest.raises(Failure, match="the patches of all templates have more than 0 MiB"):
        await patches(large, text=text)


async def test_operations_set_append_and_remove() -> None:
    criteria = "/spec/template/spec/joinConfiguration/nodeRegistration"
    changed = await patches(
        template(
            {"path": "/spec/template/spec/users/~0a~1b", "value": 1},
            {"op": "Remove", "path": f"{criteria}/criSocket"},
            {"op": "Remove", "path": "/spec/template/spec/absent/field"},
            {"path": f"{criteria}/kubeletExtraArgs/0/value", "valueFrom": "object.kind"},
            usedBy=["MachinePools"],
        )
    )
    (changes,) = changed.values()
    assert {change["op"]: change["path"] for change in changes} == {
        "add": "/spec/template/spec/users",
        "remove": f"{criteria}/criSocket",
        "replace": f"{criteria}/kubeletExtraArgs/0/value",
    }


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ({"path": "/spec/a", "valueFrom": "variables.absent"}, "absent"),
        ({"op": "Append", "path": "/spec/template", "value": 1}, "is not a list"),
        (
            {"path": "/spec/template/spec/joinConfiguration/nodeRegistration/kubeletExtraArgs/9/a"},
            "which does not exist",
        ),
    ],
)
async def test_failed_patches_are_stable(operation: dict[str, Any], message: str) -> None:
    wrong = template({"value": 1, **operation} if "valueFrom" not in operation else operation)
    with pytest.raises(Failure, match=message) as first:
        await patches(wrong)
    with pytest.raises(Failure) as second:
        await patches(wrong)
    assert str(first.value) == str(second.value)


async def test_problems_name_each_invalid_patch() -> None:
    operations = [
        {"path": "/spec/a"},
        {"op": "Remove", "path": "/spec/a", "value": 1},
        {"path": "/spec/a", "valueFrom": "object."},
    ]
    version = {"name": "v1", "templates": [template(*operations, when="1 + 1")]}
    policy = known(hook="GeneratePatches", action={"patches": {"versions": [version]}})
    uncompiled = await SANDBOX.problems(policy.owner("team"), patches_expressions(policy))
    problems = [*patches_problems(policy), *uncompiled]
    assert [problem.partition(":")[0] for problem in problems] == [
        "version v1, templates[0].operations[0]",
        "version v1, templates[0].operations[1]",
        "version v1, templates[0].when",
        "version v1, templates[0].operations[2].valueFrom",
    ]


def test_variables_are_described() -> None:
    schema = {"type": "string", "maxLength": 10}
    variable = {"name": "proxy", "required": True, "schema": schema}
    templates = [template({"path": "/spec/a", "value": 1})]
    version = PatchVersion.read({"name": "v1", "variables": [variable], "templates": templates})
    (described,) = discovered_variables(version).variables
    assert described == {"name": "proxy", "required": True, "schema": {"openAPIV3Schema": schema}}


@pytest.mark.parametrize(
    ("expression", "broken"),
    [
        ("templates.filter(t, t.usedBy == 'MachinePools').size() == 2", False),
        ("templates.all(t, t.variables.builtin.cluster.name == 'example')", False),
        ("variables.size < 3", True),
        ("variables.absent == 1", True),
    ],
)
async def test_a_topology_must_satisfy_the_rules_of_a_policy(expression: str, broken: bool) -> None:
    rules = {"rules": [{"expression": expression, "message": "too large"}]}
    policy = known("sizes", hook="ValidateTopology", action={"validate": rules})
    call: ValidateTopologyRequest = request(ValidateTopology, size=5)
    if broken:
        with pytest.raises(Failure, match="policy sizes: too large"):
            await check_topology(policy, call)
    else:
        await check_topology(policy, call)


ALLOWED = ["v1.33.13", "v1.34.1", "v1.34.4", "v1.35.4"]


def plan(**fields: Any) -> list[str]:
    versions = {
        "fromControlPlaneKubernetesVersion": "v1.33.13",
        "toKubernetesVersion": "v1.35.4",
        **fields,
    }
    asked = read(GenerateUpgradePlanRequest, {**fake_request(GenerateUpgradePlan), **versions})
    freeze = {"start": "2026-12-20T00:00:00Z", "end": "2027-01-04T00:00:00Z", "reason": "holidays"}
    wanted = UpgradePlan.read({"versions": ALLOWED, "freezes": [freeze]})
    moment = NOW if fields else datetime(2026, 12, 1, tzinfo=UTC)
    return [step.version for step in upgrade_plan(wanted, asked, moment).control_plane_upgrades]


def test_an_upgrade_visits_the_newest_allowed_version_of_each_minor() -> None:
    assert plan() == ["v1.34.4", "v1.35.4"]
    assert upgrade_steps(ALLOWED, "v1.34.1", "v1.34.4") == ["v1.34.4"]


def test_a_freeze_delays_new_upgrades_and_continues_running_ones() -> None:
    with pytest.raises(Failure, match="no upgrade starts before 2027-01-04 00:00 UTC: holidays"):
        plan(fromWorkersKubernetesVersion="v1.33.13")
    behind = {
        "fromControlPlaneKubernetesVersion": "v1.34.4",
        "fromWorkersKubernetesVersion": "v1.33.13",
    }
    assert plan(**behind) == ["v1.35.4"]


@pytest.mark.parametrize("allowed", [ALLOWED, ["v1.34.4"]])
def test_workers_follow_a_control_plane_that_has_the_target_version(allowed: list[str]) -> None:
    """Cluster API rejects steps of a control plane that needs none."""
    assert upgrade_steps(allowed, "v1.35.4", "v1.35.4") == []


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("v1.35.9", r"v1.35.9 is not allowed \(allowed: v1.33.13, v1.34.1"),
        ("v1.37.0", "v1.37.0 is not allowed"),
    ],
)
def test_an_upgrade_to_an_unlisted_version_fails(target: str, message: str) -> None:
    with pytest.raises(Failure, match=message):
        upgrade_steps(ALLOWED, "v1.33.13", target)


def test_an_upgrade_cannot_skip_a_forbidden_minor_version() -> None:
    with pytest.raises(Failure, match=r"no version v1\.34 is allowed on the way to v1\.35\.4"):
        upgrade_steps(["v1.35.4"], "v1.33.13", "v1.35.4")
