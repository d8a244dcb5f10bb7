"""The rules handle any response of an extension."""

import json
from typing import Any

import pytest
from capelin.runtime import AnyHook
from capelin.runtime.client import HttpResponse
from capelin.runtime.fixtures import request_for, sample_cluster
from capelin.runtime.v1alpha1 import (
    CLUSTER_API,
    CanUpdateMachine,
    DiscoverVariables,
    Discovery,
    ExtensionHandler,
    GeneratePatches,
    GenerateUpgradePlan,
    GroupVersionHook,
)
from capelin_conformance.extensions import RULES
from capelin_conformance.extensions.exchange import Exchange, Observations, Probe, enlarged
from hypothesis import given
from hypothesis import strategies as st

NAMES = [
    *("status", "message", "items", "uid", "patch", "patchType", "variables", "name", "schema"),
    *("controlPlaneUpgrades", "version", "machinePatch", "retryAfterSeconds", "handlers"),
]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(
        ["Success", "Failure", "JSONPatch", "JSONMergePatch", "W10=", "e30=", "bnVsbA=="]
    ),
    st.text(max_size=5),
)
NAME = st.sampled_from([*NAMES, *map(str.upper, NAMES)])
DOCUMENTS = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAME, inner, max_size=5)
)
SUCCESSES = st.dictionaries(NAME, DOCUMENTS, max_size=6).map(
    lambda fields: {"status": "Success"} | fields
)
HOOKS = (CanUpdateMachine, DiscoverVariables, GeneratePatches, GenerateUpgradePlan)


def reaction(response: Any) -> Exchange:
    return Exchange("it", HttpResponse(200, json.dumps(response).encode(), 0.01))


def evidence(hook: AnyHook, first: Any, again: Any) -> Observations:
    hook_id = GroupVersionHook(api_version=hook.id.api_version, hook=hook.id.name)
    handler = ExtensionHandler(name="it", request_hook=hook_id)
    request = request_for(hook, sample_cluster())
    probe = Probe(
        handler, hook, request, reaction(first), reaction(again), {"malformed": reaction(again)}
    )
    return Observations(
        discovery_hook=Discovery.id,
        discovery=[reaction(first), reaction(again)],
        needs_content_type=False,
        handlers=[handler],
        probes=[probe],
    )


@pytest.mark.repetitive
@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.id.name)
@given(data=st.data())
def test_rules_accept_any_response_without_an_exception(hook: AnyHook, data: st.DataObject) -> None:
    first, again = (data.draw(st.one_of(SUCCESSES, DOCUMENTS)) for _ in range(2))
    for rule in RULES:
        assert all(isinstance(problem, str) for problem in rule.check(evidence(hook, first, again)))


@pytest.mark.parametrize(
    "patch", ["bnVsbA==", "W251bGxd", "W3sib3AiOiAiYWRkIn1d", "Ijwi", "W10", "#"]
)
def test_an_invalid_patch_is_a_finding(patch: str) -> None:
    uid = request_for(GeneratePatches, sample_cluster())["items"][0]["uid"]
    items = [{"uid": uid, "patchType": "JSONPatch", "patch": patch}]
    observations = evidence(GeneratePatches, *[{"status": "Success", "items": items}] * 2)
    assert any(list(r.check(observations)) for r in RULES if r.name in {"patches", "responses"})


def test_field_names_in_another_case_are_valid() -> None:
    uid = request_for(GeneratePatches, sample_cluster())["items"][0]["uid"]
    items = [{"UID": uid, "PatchType": "JSONPatch", "Patch": "W10="}]
    observations = evidence(GeneratePatches, *[{"status": "Success", "Items": items}] * 2)
    assert [
        r.name for r in RULES if list(r.check(observations)) and r.name != "malformed-requests"
    ] == []


def test_enlarged_fills_only_requests_about_templates() -> None:
    large = enlarged(request_for(GeneratePatches, sample_cluster()), 1_000_000)
    assert 1_000_000 <= len(json.dumps(large)) < 1_020_000
    for hook in CLUSTER_API:
        if not hook.id.name.endswith(("Patches", "Topology")):
            assert enlarged(request_for(hook, sample_cluster()), 1) is None
