"""A real API server validates policies and evaluates expressions as the extension does."""

from typing import Any

import pytest
from capelin.api import Resource
from capelin.client import ApiError, Client
from capelin.testing.waiting import until
from capelin_lifecycle.admission import patches_policy
from capelin_lifecycle.api.actions import REMOVED
from capelin_lifecycle.api.policies import ClusterLifecyclePolicy, LifecyclePolicy
from capelin_lifecycle.sandbox.expressions import ExpressionError, compile_expression

from .test_expressions import OBJECT

pytestmark = pytest.mark.usefixtures("provider_crds")

JOB: dict[str, Any] = {"template": {"template": {"spec": {"containers": []}}}}
CHART: dict[str, Any] = {"release": "cpi", "values": {"replicas": 2}}
OCI: dict[str, Any] = {"reference": f"ghcr.io:5000/a/b:v1@sha256:{'0' * 64}"}
RULE: dict[str, Any] = {"rules": [{"expression": "true", "message": "m"}]}
PATCH: dict[str, Any] = {
    "name": "v1",
    "templates": [{"kind": "K", "operations": [{"path": "/spec/a", "value": 1}]}],
}


def manifest(namespace: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": LifecyclePolicy.resource.api_version,
        "kind": "LifecyclePolicy",
        "metadata": {"name": "p", "namespace": namespace},
        "spec": spec,
    }


@pytest.mark.parametrize(
    ("hook", "action"),
    [
        ("BeforeClusterUpgrade", {"approval": {"approvers": ["alice"]}}),
        (
            "BeforeClusterDelete",
            {"approval": {"window": {"schedule": "0 22 * * SAT", "duration": "4h"}}},
        ),
        ("BeforeClusterCreate", {"quota": {"limits": [{"resource": "clusters", "limit": 1}]}}),
        ("AfterClusterUpgrade", {"job": JOB}),
        ("BeforeClusterCreate", {"job": {**JOB, "target": "Management"}}),
        ("BeforeClusterUpgrade", {"apply": {"sources": [{"configMap": "cpi"}]}}),
        ("BeforeClusterUpgrade", {"apply": {"sources": [{"oci": OCI, "chart": CHART}]}}),
        ("ValidateTopology", {"validate": RULE}),
        ("GenerateUpgradePlan", {"upgradePlan": {"versions": ["v1.33.13", "v1.34.4"]}}),
        ("GeneratePatches", {"patches": {"versions": [PATCH]}}),
    ],
)
async def test_the_api_server_accepts_valid_policies(
    client: Client, namespace: str, hook: str, action: dict[str, Any]
) -> None:
    await client.create(manifest(namespace, hook=hook, action=action), dry_run=True)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"hook": "BeforeBreakfast", "action": {"validate": RULE}}, "Unsupported value"),
        ({"hook": "BeforeClusterDelete", "action": {}}, "exactly one of"),
        (
            {"hook": "BeforeClusterDelete", "action": {"validate": RULE, "job": JOB}},
            "exactly one of",
        ),
        ({"hook": "BeforeClusterDelete", "action": {"helm": {}}}, "unknown field"),
        (
            {"hook": "BeforeClusterUpgrade", "action": {"apply": {"sources": [{"helm": "x"}]}}},
            "unknown field",
        ),
        (
            {"hook": "BeforeClusterUpgrade", "action": {"apply": {"sources": [{"chart": CHART}]}}},
            "name exactly one of configMap, secret and oci",
        ),
        (
            {
                "hook": "BeforeClusterUpgrade",
                "action": {"apply": {"sources": [{"oci": {"reference": "ghcr.io/a/b:v1"}}]}},
            },
            "should match",
        ),
        (
            {"hook": "BeforeClusterDelete", "action": {"quota": {"limits": []}}},
            "quota is for the hook BeforeClusterCreate",
        ),
        (
            {"hook": "BeforeClusterCreate", "action": {"apply": {"sources": [{"secret": "x"}]}}},
            "needs a workload cluster, which does not exist before",
        ),
        ({"hook": "BeforeClusterCreate", "action": {"job": JOB}}, "no workload cluster"),
        (
            {"hook": "AfterControlPlaneInitialized", "action": {"approval": {"approvers": ["a"]}}},
            "hooks that can block",
        ),
        ({"hook": "BeforeClusterDelete", "action": {"approval": {}}}, "approvers, a window"),
        (
            {
                "hook": "BeforeClusterDelete",
                "action": {"validate": RULE},
                "versions": {"to": "1.34"},
            },
            "versions is for hooks of upgrades",
        ),
        (
            {
                "hook": "BeforeClusterUpgrade",
                "action": {"validate": RULE},
                "versions": {"to": "newest"},
            },
            "should match",
        ),
        *(
            ({"hook": "BeforeClusterDelete", "action": {name: {"a": 1}}}, instead)
            for name, instead in REMOVED.items()
        ),
        (
            {
                "hook": "BeforeClusterCreate",
                "action": {"quota": {"limits": [{"resource": "memory", "limit": "1Gi"}]}},
            },
            "need an expression",
        ),
        (
            {"hook": "BeforeClusterUpgrade", "action": {"validate": RULE}, "timeout": "0s"},
            "timeout",
        ),
        (
            {
                "hook": "GeneratePatches",
                "action": {"patches": {"versions": [PATCH]}},
                "clusterSelector": {"matchLabels": {"tier": "production"}},
            },
            "remove the selectors",
        ),
        (
            {
                "hook": "GeneratePatches",
                "action": {"patches": {"versions": [PATCH]}},
                "classes": ["small"],
            },
            "remove the selectors",
        ),
    ],
)
async def test_the_api_server_rejects_invalid_policies(
    client: Client, namespace: str, spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(ApiError, match=message):
        await client.create(manifest(namespace, **spec), dry_run=True)


async def test_policy_keeps_the_field_of_its_action(client: Client, namespace: str) -> None:
    resource = LifecyclePolicy.resource
    approval = {"approval": {"approvers": ["alice"]}}
    await client.create(
        manifest(namespace, hook="BeforeClusterUpgrade", action=approval),
        # Discovery can lag behind a kind that is served.
        resource=resource,
    )
    other = {"spec": {"action": {"approval": None, "job": JOB}}}
    with pytest.raises(ApiError, match="cannot become another one"):
        await client.patch(resource, "p", namespace, other)
    settings = {"spec": {"action": {"approval": {"approvers": ["bob"]}}}}
    await client.patch(resource, "p", namespace, settings)


async def test_cluster_wide_patches_have_no_selector_of_namespaces(client: Client) -> None:
    spec = {
        "hook": "GeneratePatches",
        "action": {"patches": {"versions": [PATCH]}},
        "namespaceSelector": {"matchLabels": {"tier": "production"}},
    }
    resource = ClusterLifecyclePolicy.resource
    made = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": "p"},
        "spec": spec,
    }
    with pytest.raises(ApiError, match="remove the selectors"):
        await client.create(made, resource=resource, dry_run=True)
    allowed = {**made, "spec": {**spec, "namespaceSelector": {}}}
    await client.create(allowed, resource=resource, dry_run=True)


async def test_a_version_of_patches_cannot_be_changed(client: Client, namespace: str) -> None:
    resource = LifecyclePolicy.resource

    def patches(*versions: dict[str, Any]) -> dict[str, Any]:
        return {"spec": {"action": {"patches": {"versions": list(versions)}}}}

    made = manifest(namespace, hook="GeneratePatches", **patches(PATCH)["spec"])
    await client.create(made)
    other = {**PATCH, "name": "v2"}
    await client.patch(resource, "p", namespace, patches(PATCH, other))
    for admission in patches_policy("patches"):
        await client.apply(admission)
    changed = {**PATCH, "templates": [{**PATCH["templates"][0], "kind": "Other"}]}

    async def refusal() -> str:
        try:
            await client.patch(resource, "p", namespace, patches(changed, other), dry_run=True)
        except ApiError as error:
            return str(error)
        return ""

    # The admission policy becomes effective soon after it is stored.
    assert "are immutable" in await until(refusal)
    await client.patch(resource, "p", namespace, patches(other))


# Expressions

_GROUP = "judge.capelin.example.com"
_JUDGED = Resource(_GROUP, "v1", "Judged", "judgeds")
_DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"judgeds.{_GROUP}"},
    "spec": {
        "group": _GROUP,
        "scope": "Namespaced",
        "names": {"kind": "Judged", "listKind": "JudgedList", "plural": "judgeds"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
EXPRESSIONS = (
    "object.metadata.labels.tier in ['prod', 'dev']",
    "object.metadata.labels.tier == 'dev'",
    "object.pools.all(pool, pool.replicas <= 3)",
    "object.pools.map(pool, pool.replicas).sum() == 7",
    "object.pools.exists_one(pool, pool.name.startsWith('a'))",
    "has(object.memory) && !has(object.disk)",
    "object.disk == 1",
    "object.?disk.orValue('none') == 'none'",
    "quantity(object.memory).isGreaterThan(quantity('500Mi'))",
    "quantity(object.memory).isLessThan(quantity('1G'))",
    "quantity('1').add(quantity('500m')).compareTo(quantity('1500m')) == 0",
    "quantity('2').sub(1).asInteger() == 1",
    "quantity(object.version).asInteger() == 1",
    "isQuantity('2Gi') && !isQuantity('many')",
    "semver(object.version, true).minor() == 34",
    "semver(object.version).minor() == 34",
    "semver('1.2.3').isLessThan(semver('1.10.0'))",
    "isSemver('1.2.3') && !isSemver('v1.2.3') && isSemver('v1.2', true)",
    "ip(object.address).family() == 4 && isIP('::1') && !isIP('1.2.3')",
    "ip(object.address).isLoopback()",
    "cidr('10.0.0.0/8').containsIP(object.address)",
    "cidr('10.0.0.0/8').containsIP(ip('192.168.0.1'))",
    "'A,b'.lowerAscii().split(',') == ['a', 'b']",
    "['a', 'b'].join('-').replace('-', '+').upperAscii() == 'A+B'",
    "' a '.trim() == 'a'",
    "object.version.matches('^v1[.]3[0-9]')",
    "1 / int(object.pools.size() - 2) > 0",
)


def ours(expression: str) -> bool | None:
    """Our value of an expression: true, false, or None for an error."""
    try:
        return compile_expression(expression, ("object",), boolean=True).is_true(
            {"object": {**OBJECT, "kind": "Judged"}}
        )
    except ExpressionError:
        return None


def policies(namespace: str) -> list[dict[str, Any]]:
    """An admission policy for each expression, which judges the object of its number."""
    group = "admissionregistration.k8s.io/v1"
    found: list[dict[str, Any]] = []
    for number, expression in enumerate(EXPRESSIONS):
        name = f"{namespace}-{number}"
        rules = [
            {
                "apiGroups": [_GROUP],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["judgeds"],
                "resourceNames": [f"judged-{number}"],
            }
        ]
        found += [
            {
                "apiVersion": group,
                "kind": "ValidatingAdmissionPolicy",
                "metadata": {"name": name},
                "spec": {
                    "matchConstraints": {"resourceRules": rules},
                    "validations": [{"expression": expression, "message": "it is false"}],
                },
            },
            {
                "apiVersion": group,
                "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": {"name": name},
                "spec": {
                    "policyName": name,
                    "validationActions": ["Deny"],
                    "matchResources": {
                        "namespaceSelector": {
                            "matchLabels": {"kubernetes.io/metadata.name": namespace}
                        }
                    },
                },
            },
        ]
    return found


async def test_the_api_server_and_the_extension_evaluate_expressions_alike(
    client: Client, namespace: str
) -> None:
    await client.apply(_DEFINITION)
    installed = policies(namespace)
    for policy in installed:
        await client.apply(policy)

    async def judged(number: int) -> bool | None:
        obj = {
            **OBJECT,
            "apiVersion": f"{_GROUP}/v1",
            "kind": "Judged",
            "metadata": {
                **OBJECT["metadata"],
                "name": f"judged-{number}",
                "namespace": namespace,
            },
        }
        try:
            await client.create(obj, resource=_JUDGED, dry_run=True)
        except ApiError as error:
            return False if "it is false" in str(error) else None
        return True

    # The policies become effective one after the other, soon after they are stored. Until then
    # the API server admits every object. The last expression fails, and every result occurs.
    answers = [ours(expression) for expression in EXPRESSIONS]
    assert {True, False, None} == set(answers)
    assert answers[-1] is None
    try:
        for number, answer in enumerate(answers):
            expression = EXPRESSIONS[number]
            if answer is True:
                continue
            await until(lambda number=number: judged(number), lambda admitted: admitted is not True)
            assert (expression, await judged(number)) == (expression, answer)
        for number, answer in enumerate(answers):
            if answer is True:
                assert (EXPRESSIONS[number], await judged(number)) == (EXPRESSIONS[number], True)
    finally:
        for policy in reversed(installed):
            await client.delete(await client.resource_of(policy), policy["metadata"]["name"])
