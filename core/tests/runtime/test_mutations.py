import base64
import copy
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from capelin.api import Model
from capelin.json_patches import apply_json_patch, apply_merge_patch
from capelin.runtime.dispatch import handler_runners
from capelin.runtime.extension import Call, Extension
from capelin.runtime.messages import read
from capelin.runtime.results import Failure
from capelin.runtime.topology.golden import changed_patches, record_patches
from capelin.runtime.topology.mutations import Mutations, NoVariables
from capelin.runtime.topology.templates import (
    Builtins,
    Selector,
    Template,
    TemplateRef,
    control_plane,
    infrastructure_cluster,
    machine_deployments,
    machine_pools,
)
from capelin.runtime.topology.variables import VariableSchemaError
from capelin.runtime.v1alpha1 import (
    DiscoverVariables,
    GeneratePatches,
    GeneratePatchesRequest,
    HolderReference,
)

KUBEADM = "bootstrap.cluster.x-k8s.io/v1beta2"
DEV = "infrastructure.cluster.x-k8s.io/v1beta2"
CLUSTER = "cluster.x-k8s.io/v1beta2"


class Variables(Model):
    image: str = ""
    labels: dict[str, str] = {}


def item(
    uid: str,
    kind: str = "KubeadmConfigTemplate",
    api_version: str = KUBEADM,
    holder: str = "MachineDeployment",
    path: str = "spec.template.spec.bootstrap.configRef",
    spec: Any = None,
    **variables: Any,
) -> dict[str, Any]:
    return {
        "uid": uid,
        "holderReference": {
            "apiVersion": CLUSTER,
            "kind": holder,
            "namespace": "default",
            "name": f"demo-{uid}",
            "fieldPath": path,
        },
        "object": {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {"name": f"demo-{uid}"},
            "spec": {"template": {"spec": {"files": []} if spec is None else spec}},
        },
        "variables": [{"name": name, "value": value} for name, value in variables.items()],
    }


def worker(name: str) -> dict[str, Any]:
    return {"machineDeployment": {"class": name, "version": "v1.34.4"}}


def nothing(_: object) -> None:
    """Changes nothing."""


def request(*items: dict[str, Any], **variables: Any) -> dict[str, Any]:
    values = [{"name": name, "value": value} for name, value in variables.items()]
    return {"variables": values, "items": list(items)}


def patches_for(mutations: Mutations[Any], document: dict[str, Any]) -> dict[str, Any]:
    """Patches for a request by the uid of their template."""
    call: Call[GeneratePatches, None] = Call(read(GeneratePatchesRequest, document), None)
    response = mutations.patches(call)
    return {item.uid: orjson.loads(item.patch) for item in response.items}


def test_a_change_becomes_a_patch() -> None:
    mutations = Mutations(Variables)

    @mutations.on("KubeadmConfigTemplate")
    def commands(template: Template[Variables]) -> None:
        template.sequence("preKubeadmCommands").append(f"pull {template.variables.image}")

    assert patches_for(mutations, request(item("1"), image="pause")) == {
        "1": [
            {
                "op": "add",
                "path": "/spec/template/spec/preKubeadmCommands",
                "value": ["pull pause"],
            }
        ]
    }


def test_own_metadata_and_the_whole_template_can_be_changed() -> None:
    mutations = Mutations(Variables)

    @mutations.on("KubeadmConfigTemplate")
    def both(template: Template[Variables]) -> None:
        template.own_metadata["labels"] = {"patched": "yes"}
        template.object["spec"]["template"]["metadata"] = {}

    assert patches_for(mutations, request(item("1"), image="pause")) == {
        "1": [
            {"op": "add", "path": "/metadata/labels", "value": {"patched": "yes"}},
            {"op": "add", "path": "/spec/template/metadata", "value": {}},
        ]
    }


def test_patches_do_not_change_the_request() -> None:
    mutations = Mutations(NoVariables)

    @mutations.on("KubeadmConfigTemplate")
    def files(template: Template[NoVariables]) -> None:
        template.sequence("files").append({"path": "/etc/x"})

    document = request(item("1"))
    before = copy.deepcopy(document)
    patches_for(mutations, document)
    assert document == before


def test_unchanged_templates_have_no_patch() -> None:
    mutations = Mutations(NoVariables)

    @mutations.on("KubeadmConfigTemplate")
    def nothing(template: Template[NoVariables]) -> None:
        template.spec["files"] = []

    assert patches_for(mutations, request(item("1"), item("2", kind="OtherTemplate"))) == {}


def test_changes_run_in_the_order_of_their_registration() -> None:
    mutations = Mutations(NoVariables)

    def adding(word: str) -> None:
        @mutations.on("KubeadmConfigTemplate")
        def add(template: Template[NoVariables]) -> None:
            template.sequence("files").append(word)

    for word in ("first", "second", "third"):
        adding(word)
    (steps,) = patches_for(mutations, request(item("1"))).values()
    assert [step["value"] for step in steps] == ["first", "second", "third"]


def test_patches_have_the_order_of_the_templates() -> None:
    mutations = Mutations(NoVariables)
    mutations.on("KubeadmConfigTemplate")(lambda template: template.spec.clear())
    document = request(*(item(uid) for uid in ("b", "c", "a")))
    assert list(patches_for(mutations, document)) == ["b", "c", "a"]


def test_a_change_can_select_an_api_version() -> None:
    mutations = Mutations(NoVariables)
    mutations.on("KubeadmConfigTemplate", api_version=KUBEADM)(lambda t: t.spec.clear())
    old = item("old", api_version="bootstrap.cluster.x-k8s.io/v1beta1")
    assert list(patches_for(mutations, request(old, item("new")))) == ["new"]


def test_a_change_receives_the_variables_of_its_template() -> None:
    mutations = Mutations(Variables)

    @mutations.on("KubeadmConfigTemplate")
    def labels(template: Template[Variables]) -> None:
        template.metadata["labels"] = template.variables.labels

    patches = patches_for(
        mutations,
        request(item("all"), item("own", labels={"tier": "gold"}), labels={"tier": "tin"}),
    )
    assert [patches[uid][0]["value"] for uid in ("all", "own")] == [
        {"labels": {"tier": "tin"}},
        {"labels": {"tier": "gold"}},
    ]


def test_a_change_receives_builtin_variables() -> None:
    mutations = Mutations(NoVariables)

    @mutations.on("KubeadmConfigTemplate")
    def version(template: Template[NoVariables]) -> None:
        owner = template.builtin.machine_deployment
        assert owner
        template.spec["version"] = f"{template.builtin.cluster.name} {owner.version}"

    document = request(item("1", builtin=worker("default")), builtin={"cluster": {"name": "demo"}})
    assert patches_for(mutations, document)["1"][0]["value"] == "demo v1.34.4"


def test_invalid_variables_are_a_failure() -> None:
    mutations = Mutations(Variables)
    mutations.on("KubeadmConfigTemplate")(nothing)
    with pytest.raises(Failure, match="the variables do not fit their schema: image"):
        patches_for(mutations, request(item("1"), image=5))


def test_variables_are_not_read_without_a_change_for_the_template() -> None:
    mutations = Mutations(Variables)
    mutations.on("OtherTemplate")(nothing)
    mutations.on("KubeadmConfigTemplate", control_plane)(nothing)
    assert patches_for(mutations, request(item("1"), image=5)) == {}


def test_an_unknown_kind_is_ignored_or_fails() -> None:
    document = request(item("1", kind="OtherTemplate"))
    assert patches_for(Mutations(NoVariables), document) == {}
    with pytest.raises(Failure) as error:
        patches_for(Mutations(NoVariables, unknown_kinds="fail"), document)
    assert error.value.message == (
        f"no change is for OtherTemplate {KUBEADM}"
        " at spec.template.spec.bootstrap.configRef of MachineDeployment"
    )


def test_a_known_kind_in_an_unknown_version_fails_too() -> None:
    mutations = Mutations(NoVariables, unknown_kinds="fail")
    mutations.on("KubeadmConfigTemplate", api_version=KUBEADM)(nothing)
    with pytest.raises(Failure, match="no change is for KubeadmConfigTemplate v9"):
        patches_for(mutations, request(item("1", api_version="v9")))


def test_a_known_kind_of_another_holder_is_ignored() -> None:
    mutations = Mutations(NoVariables, unknown_kinds="fail")
    mutations.on("KubeadmConfigTemplate", control_plane)(lambda template: template.spec.clear())
    assert patches_for(mutations, request(item("1"))) == {}


def test_an_unexpected_type_in_a_template_is_a_failure() -> None:
    mutations = Mutations(NoVariables)
    mutations.on("KubeadmConfigTemplate")(lambda template: template.sequence("a", "b").clear())
    cases: list[tuple[Any, str]] = [
        ({"a": []}, "spec.template.spec.a is not an object"),
        ({"a": {"b": {}}}, "spec.template.spec.a.b is not a list"),
    ]
    for spec, problem in cases:
        with pytest.raises(Failure) as error:
            patches_for(mutations, request(item("1", spec=spec)))
        assert error.value.message == (
            f"KubeadmConfigTemplate {KUBEADM} at spec.template.spec.bootstrap.configRef"
            f" of MachineDeployment: {problem}"
        )


@pytest.mark.parametrize(
    ("holder", "builtin", "expected"),
    [
        (
            "MachineDeployment",
            {"machineDeployment": {"topologyName": "md"}},
            "MachineDeployment md",
        ),
        ("MachinePool", {"machinePool": {"topologyName": "mp"}}, "MachinePool mp"),
        ("MachinePool", {"machinePool": "nonsense"}, "MachinePool"),
        ("KubeadmControlPlane", {"controlPlane": {"name": "demo-x7k2p"}}, "KubeadmControlPlane"),
        ("Cluster", {}, "Cluster demo-1"),
    ],
)
def test_failures_contain_no_generated_name(holder: str, builtin: Any, expected: str) -> None:
    mutations = Mutations(NoVariables, unknown_kinds="fail")
    with pytest.raises(Failure) as error:
        patches_for(mutations, request(item("1", holder=holder, builtin=builtin)))
    assert error.value.message.endswith(f" of {expected}")


def failing_for(names: Sequence[str]) -> str:
    """Message for MachineDeployments whose templates have an unknown kind."""
    mutations = Mutations(NoVariables, unknown_kinds="fail")
    mutations.on("KubeadmConfigTemplate")(lambda template: template.spec.clear())
    failing = [
        item(name, kind="OtherTemplate", builtin={"machineDeployment": {"topologyName": name}})
        for name in names
    ]
    with pytest.raises(Failure) as error:
        patches_for(mutations, request(item("fine"), *failing))
    return error.value.message


def test_the_message_of_several_failures_is_sorted_and_unique() -> None:
    message = failing_for(["b", "a", "b"])
    assert message == failing_for(["b", "b", "a"])
    assert [part[-1] for part in message.split("; ")] == ["a", "b"]


def test_the_message_of_many_failures_is_truncated() -> None:
    names = [f"md-{number:02}" for number in range(40)]
    message = failing_for(names)
    assert message == failing_for(names[::-1])
    assert "MachineDeployment md-09; " in message
    assert message.endswith("; and 30 more")


def test_mapping_and_sequence_create_missing_parents() -> None:
    mutations = Mutations(NoVariables)

    @mutations.on("KubeadmConfigTemplate")
    def fill(template: Template[NoVariables]) -> None:
        template.mapping("a", "b")["c"] = 1
        template.sequence("d", "e").append(2)

    document = request(item("1", spec={"a": None}))
    after = apply_json_patch(document["items"][0]["object"], patches_for(mutations, document)["1"])
    assert after["spec"]["template"]["spec"] == {"a": {"b": {"c": 1}}, "d": {"e": [2]}}


def test_mutations_can_return_merge_patches() -> None:
    mutations = Mutations(NoVariables, patch_type="JSONMergePatch")

    @mutations.on("KubeadmConfigTemplate")
    def files(template: Template[NoVariables]) -> None:
        template.spec["files"] = None if template.holder.name == "demo-null" else ["x"]

    document = request(item("1"))
    patch = patches_for(mutations, document)["1"]
    assert patch == {"spec": {"template": {"spec": {"files": ["x"]}}}}
    after = apply_merge_patch(document["items"][0]["object"], patch)
    assert after["spec"]["template"]["spec"] == {"files": ["x"]}
    with pytest.raises(Failure, match=r"cannot set spec\.template\.spec\.files to null"):
        patches_for(mutations, request(item("null")))


def template_ref(kind: str, path: str, builtin: Any = None) -> TemplateRef:
    holder = HolderReference(
        api_version=CLUSTER, kind=kind, namespace="default", name="demo", field_path=path
    )
    return TemplateRef(holder, Builtins(builtin))


CONFIG, INFRA = "spec.template.spec.bootstrap.configRef", "spec.template.spec.infrastructureRef"
POOL = {"machinePool": {"class": "spot"}}
TEMPLATE_REFS = {
    "cluster": template_ref("Cluster", "spec.infrastructureRef"),
    "control plane": template_ref("Cluster", "spec.controlPlaneRef"),
    "control plane machines": template_ref(
        "KubeadmControlPlane", "spec.machineTemplate.spec.infrastructureRef"
    ),
    "control plane machines before v1beta2": template_ref(
        "KubeadmControlPlane", "spec.machineTemplate.infrastructureRef"
    ),
    "workers": template_ref("MachineDeployment", CONFIG, worker("default-worker")),
    "worker machines": template_ref("MachineDeployment", INFRA, worker("gpu")),
    "pool": template_ref("MachinePool", INFRA, POOL),
}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (infrastructure_cluster, {"cluster"}),
        (
            control_plane,
            {
                "control plane",
                "control plane machines",
                "control plane machines before v1beta2",
            },
        ),
        (machine_deployments(), {"workers", "worker machines"}),
        (machine_deployments("gpu"), {"worker machines"}),
        (machine_deployments("default-*", "none"), {"workers"}),
        (machine_deployments("spot"), set[str]()),
        (machine_pools(), {"pool"}),
        (machine_pools("s*"), {"pool"}),
        (machine_pools("gpu"), set[str]()),
    ],
)
def test_selectors_match_templates_by_their_holder(where: Selector, expected: set[str]) -> None:
    assert {name for name, template_ref in TEMPLATE_REFS.items() if where(template_ref)} == expected


def test_workers_without_a_class_match_no_class() -> None:
    assert not machine_deployments("default")(template_ref("MachineDeployment", CONFIG))
    assert machine_deployments()(template_ref("MachineDeployment", CONFIG))


def test_one_of_several_selectors_is_sufficient() -> None:
    mutations = Mutations(NoVariables)
    mutations.on("KubeadmConfigTemplate", machine_pools(), machine_deployments("gpu"))(
        lambda template: template.spec.clear()
    )
    document = request(
        item("gpu", builtin=worker("gpu")),
        item("cpu", builtin=worker("cpu")),
        item("pool", holder="MachinePool", builtin=POOL),
    )
    assert list(patches_for(mutations, document)) == ["gpu", "pool"]


class Impossible(Model):
    tags: set[str] = set()


def test_mutations_reject_variables_without_a_schema() -> None:
    with pytest.raises(VariableSchemaError):
        Mutations(Impossible)


def extension(command: str = "pull", name: str = "images-v1") -> Extension:
    ext = Extension("images")
    mutations = Mutations(Variables)
    ext.handler(GeneratePatches, name=name)(mutations.patches)
    ext.handler(DiscoverVariables, name="variables")(mutations.described)

    @mutations.on("KubeadmConfigTemplate")
    def commands(template: Template[Variables]) -> None:
        if not template.variables.image:
            raise Failure("no image")
        template.sequence("preKubeadmCommands").append(f"{command} {template.variables.image}")

    return ext


async def test_handlers_serve_patches_and_variables() -> None:
    responses = {
        path.rpartition("/")[2]: orjson.loads(
            (await endpoint.respond(orjson.dumps(request(item("1"), image="pause")))).body
        )
        for path, endpoint in handler_runners(extension()).items()
    }
    (patched,) = responses["images-v1"]["items"]
    assert json.loads(base64.b64decode(patched["patch"]))[0]["value"] == ["pull pause"]
    assert [variable["name"] for variable in responses["variables"]["variables"]] == [
        "image",
        "labels",
    ]


@pytest.fixture
def released(tmp_path: Path) -> Path:
    (tmp_path / "requests").mkdir()
    examples = {"one": request(item("1"), image="pause"), "none": request(item("1"))}
    for name, example in examples.items():
        (tmp_path / "requests" / f"{name}.json").write_text(json.dumps(example))
    return tmp_path


async def test_record_patches_writes_each_response_once(released: Path) -> None:
    written = await record_patches(extension(), released)
    assert [str(path.relative_to(released)) for path in written] == [
        "images-v1/none.json",
        "images-v1/one.json",
    ]
    assert json.loads(written[0].read_text()) == {
        "status": "Failure",
        "message": "no image",
        "patches": [],
    }
    assert await record_patches(extension("fetch"), released) == []
    assert await changed_patches(extension(), released) == []


async def test_record_patches_rejects_a_handler_without_patches(released: Path) -> None:
    ext = extension()
    ext.handler(GeneratePatches, name="idle-v1")(Mutations(NoVariables).patches)
    with pytest.raises(ValueError, match=r"would patch no template of any example\. Add"):
        await record_patches(ext, released)
    assert not (released / "idle-v1").exists()
    assert (released / "images-v1" / "one.json").exists()


async def test_a_changed_response_of_a_released_handler_is_a_problem(released: Path) -> None:
    await record_patches(extension(), released)
    (problem,) = await changed_patches(extension("fetch"), released)
    assert problem == (
        "images-v1 now responds to one differently, which would roll out machines."
        " Undo the change, and add a new handler for the new behavior"
    )


async def test_a_changed_failure_of_a_released_handler_is_a_problem(released: Path) -> None:
    await record_patches(extension(), released)
    file = released / "images-v1" / "none.json"
    file.write_text(file.read_text().replace("no image", "no picture"))
    (problem,) = await changed_patches(extension(), released)
    assert problem.startswith("images-v1 now responds to none differently")


async def test_an_equivalent_patch_counts_as_unchanged(released: Path) -> None:
    await record_patches(extension(), released)
    file = released / "images-v1" / "one.json"
    answered = json.loads(file.read_text())
    answered["patches"][0] = {
        "uid": "1",
        "patchType": "JSONMergePatch",
        "patch": {"spec": {"template": {"spec": {"preKubeadmCommands": ["pull pause"]}}}},
    }
    file.write_text(json.dumps(answered))
    assert await changed_patches(extension(), released) == []


GONE = (
    "images-v1 no longer exists, but ClusterClasses may still use it. Restore it, or,"
    " if none uses it, remove the folder images-v1 and its entry in examples.json"
)


async def test_a_removed_released_handler_is_a_problem(released: Path) -> None:
    await record_patches(extension(), released)
    assert GONE in await changed_patches(extension(name="images-v2"), released)


async def test_a_released_handler_can_be_removed_with_its_record(released: Path) -> None:
    await record_patches(extension(), released)
    await record_patches(extension(name="images-v2"), released)
    assert await changed_patches(extension(name="images-v2"), released) == [GONE]
    shutil.rmtree(released / "images-v1")
    recorded = json.loads((released / "examples.json").read_text())
    del recorded["images-v1"]
    (released / "examples.json").write_text(json.dumps(recorded))
    assert await changed_patches(extension(name="images-v2"), released) == []


async def test_a_new_handler_must_be_recorded(released: Path) -> None:
    await record_patches(extension(), released)
    missing = "images-v2 has no response for one. Record one before the release"
    assert missing in await changed_patches(extension(name="images-v2"), released)


@pytest.mark.parametrize(
    ("files", "lost", "path"),
    [
        (["requests/one.json"], "the example one", "requests/one.json"),
        (["requests/one.json", "images-v1/one.json"], "the example one", "requests/one.json"),
        (["images-v1/one.json"], "the response for one", "images-v1/one.json"),
    ],
)
async def test_a_lost_example_or_response_is_a_problem(
    released: Path, files: list[str], lost: str, path: str
) -> None:
    await record_patches(extension(), released)
    for file in files:
        (released / file).unlink()
    assert await changed_patches(extension(), released) == [
        f"images-v1: {lost} no longer exists. Restore {path}"
    ]


async def test_a_lost_list_of_examples_is_a_problem(released: Path) -> None:
    await record_patches(extension(), released)
    (released / "examples.json").unlink()
    (problem,) = await changed_patches(extension(), released)
    assert problem.startswith("examples.json with the list of examples is missing. Restore it")


async def test_recording_again_keeps_lost_examples_as_problems(released: Path) -> None:
    await record_patches(extension(), released)
    (released / "requests" / "one.json").unlink()
    (released / "images-v1" / "one.json").unlink()
    (released / "requests" / "two.json").write_text(json.dumps(request(item("2"))))
    await record_patches(extension(), released)
    assert json.loads((released / "examples.json").read_text()) == {
        "images-v1": ["none", "one", "two"]
    }
    (problem,) = await changed_patches(extension(), released)
    assert problem.endswith("Restore requests/one.json")
