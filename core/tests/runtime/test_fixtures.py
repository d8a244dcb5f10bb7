import json
from typing import Any

import pytest
from capelin.api.capi import ClassTemplate, Cluster, ClusterClass
from capelin.runtime import AnyHook, Catalog, CatalogError, Hook, Message, Response
from capelin.runtime.fixtures import ClusterFixture, UsedTemplate, request_for, sample_cluster
from capelin.runtime.fixtures.live import as_sent, builtins, used_patches, used_templates, variables
from capelin.runtime.messages import read
from capelin.runtime.v1alpha1 import (
    CLUSTER_API,
    CanUpdateMachine,
    CanUpdateMachineSet,
    GeneratePatches,
    GeneratePatchesRequest,
    UpdateMachine,
    ValidateTopology,
)

ZOO = Catalog()


@ZOO.hook("zoo.example.com/v1", tag="Zoo", summary="Feeds")
class Feed(Hook[Message, Response]):
    """Feeds."""


@pytest.mark.parametrize("hook", list(CLUSTER_API), ids=lambda hook: hook.id.name)
def test_every_hook_has_a_sample_request_of_its_type(hook: AnyHook) -> None:
    request = request_for(hook, sample_cluster(), {"a": "b"})
    # Building is strict: a field that the type does not have would raise.
    assert hook.request_type().model_validate(json.loads(json.dumps(request))).dump() == request
    assert request.get("settings", {}) == ({} if hook.singleton else {"a": "b"})


def test_the_same_sample_cluster_gives_the_same_request() -> None:
    first, second = (request_for(GeneratePatches, sample_cluster()) for _ in range(2))
    assert first == second
    assert len({item["uid"] for item in first["items"]}) == len(first["items"])


def test_other_hooks_have_no_sample_request() -> None:
    with pytest.raises(CatalogError, match="Provide one in a file"):
        request_for(Feed, sample_cluster())


CLUSTER: dict[str, Any] = {
    "metadata": {"name": "blue", "namespace": "fleet", "uid": "1", "labels": {"a": "b"}},
    "spec": {
        "topology": {
            "classRef": {"name": "small", "namespace": "classes"},
            "version": "v1.34.4",
            "controlPlane": {"replicas": 3},
            "variables": [{"name": "motto", "value": "swim"}],
            "workers": {
                "machineDeployments": [
                    {
                        "class": "general",
                        "name": "one",
                        "replicas": 2,
                        "variables": {"overrides": [{"name": "motto", "value": "dive"}]},
                    },
                    {"class": "gone", "name": "two"},
                ],
                "machinePools": [{"class": "pool", "name": "three"}],
            },
        }
    },
}


def template(kind: str) -> dict[str, Any]:
    return {"templateRef": {"apiVersion": "x.io/v1", "kind": f"{kind}Template", "name": "t"}}


CLASS = ClusterClass.read(
    {
        "metadata": {"name": "small"},
        "spec": {
            "infrastructure": template("Sea"),
            "controlPlane": {**template("Reef"), "machineInfrastructure": template("Fish")},
            "workers": {
                "machineDeployments": [
                    {
                        "class": "general",
                        "bootstrap": template("Egg"),
                        "infrastructure": template("Fish"),
                    }
                ],
                "machinePools": [
                    {
                        "class": "pool",
                        "bootstrap": template("Egg"),
                        "infrastructure": template("Shoal"),
                    }
                ],
            },
        },
    }
)


def find(template: ClassTemplate) -> dict[str, Any]:
    reference = template.template_ref
    assert reference
    return {"apiVersion": reference.api_version, "kind": reference.kind}


def test_used_templates_returns_templates_with_their_holders() -> None:
    used = list(used_templates(Cluster.read(CLUSTER), CLASS, find))
    holders = [
        (t.object["kind"], t.holder["kind"], t.holder["name"], t.holder["fieldPath"]) for t in used
    ]
    assert holders == [
        ("SeaTemplate", "Cluster", "blue", "spec.infrastructureRef"),
        ("ReefTemplate", "Cluster", "blue", "spec.controlPlaneRef"),
        ("FishTemplate", "Reef", "blue", "spec.machineTemplate.spec.infrastructureRef"),
        ("EggTemplate", "MachineDeployment", "blue-one", "spec.template.spec.bootstrap.configRef"),
        ("FishTemplate", "MachineDeployment", "blue-one", "spec.template.spec.infrastructureRef"),
        ("EggTemplate", "MachinePool", "blue-three", "spec.template.spec.bootstrap.configRef"),
        ("ShoalTemplate", "MachinePool", "blue-three", "spec.template.spec.infrastructureRef"),
    ]
    assert used[3].variables["motto"] == "dive"
    assert used[3].variables["builtin"]["machineDeployment"]["class"] == "general"
    assert used[1].variables["builtin"]["controlPlane"]["replicas"] == 3


def test_variables_of_a_cluster_take_precedence_over_defaults() -> None:
    values = variables(Cluster.read(CLUSTER), {"motto": "float", "depth": 3})
    assert (values["motto"], values["depth"]) == ("swim", 3)
    assert values["builtin"]["cluster"]["topology"]["classNamespace"] == "classes"
    request = {"items": [], "variables": [{"name": k, "value": v} for k, v in values.items()]}
    assert read(GeneratePatchesRequest, request).variables


def patched_class() -> ClusterClass:
    """A class with an inline patch and two patches of extensions."""
    external = {"generatePatchesExtension": "motto-v1.sea", "settings": {"deep": "yes"}}
    patches: list[dict[str, Any]] = [
        {"name": "inside", "definitions": []},
        {"name": "outside", "external": external},
        {"name": "checks", "external": {"validateTopologyExtension": "checked.sea"}},
    ]
    defined = {"motto": ["outside"], "depth": ["inline"], "both": ["inline", "outside"]}
    status: list[dict[str, Any]] = [
        {"name": name, "definitions": [{"from": origin, "schema": {}} for origin in origins]}
        for name, origins in defined.items()
    ]
    return ClusterClass.read(
        {
            "metadata": {"name": "small"},
            "spec": {"patches": patches},
            "status": {"variables": status},
        }
    )


def test_a_patch_receives_only_its_own_variables() -> None:
    patches = list(used_patches(patched_class()))
    names = ("builtin", "motto", "depth", "both", "unknown")
    values: dict[str, Any] = dict.fromkeys(names, 1)
    used = UsedTemplate({}, {}, values)
    scene = ClusterFixture(
        {}, "v1.0.0", "v1.0.0", templates=[used], variables=values, patches=patches
    )

    def visible(patch: int, hook: AnyHook) -> set[str]:
        scene_of_patch = scene.visible_to(patches[patch], hook)
        assert scene_of_patch.variables == scene_of_patch.templates[0].variables
        return set(scene_of_patch.variables)

    assert visible(0, GeneratePatches) == {"builtin", "depth", "both"}
    assert visible(1, GeneratePatches) == {"builtin", "motto", "both"}
    # Cluster API validates the result of the last patch.
    assert visible(1, ValidateTopology) == visible(2, GeneratePatches) == {"builtin"}
    assert [dict(patch.handlers) for patch in patches] == [
        {},
        {"GeneratePatches": "motto-v1.sea"},
        {"ValidateTopology": "checked.sea"},
    ]
    assert patches[1].settings == {"deep": "yes"}


@pytest.mark.parametrize("hook", [CanUpdateMachine, CanUpdateMachineSet, UpdateMachine])
def test_a_cluster_without_machines_has_no_sample_request_for_a_machine(hook: AnyHook) -> None:
    scene = ClusterFixture({"metadata": {"name": "blue"}}, "v1.0.0", "v1.0.0")
    with pytest.raises(CatalogError, match=r"needs .* machine.* Provide the request in a file"):
        request_for(hook, scene)


def test_requests_omit_fields_that_cluster_api_removes() -> None:
    kept = {"a": "b"}
    hidden = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    metadata: dict[str, Any] = {
        "name": "blue",
        "annotations": {**kept, **hidden},
        "managedFields": [{}],
    }
    metadata_of_builtins = builtins(Cluster.read({"metadata": metadata}))["cluster"]["metadata"]
    assert metadata_of_builtins["annotations"] == kept
    sent = as_sent({"kind": "Cluster", "metadata": metadata, "spec": {}, "status": {"phase": "x"}})
    assert sent == {
        "kind": "Cluster",
        "metadata": {"name": "blue", "annotations": kept},
        "spec": {},
    }
