"""Template kinds, and the policy that makes their specs immutable."""

import os
from collections.abc import Iterator
from typing import Annotated

import pytest
from annotated_types import MaxLen
from capelin.api import Model, Template, crd, immutable_templates, kind
from capelin.testing.waiting import wait_until

from .conftest import Install
from .wire import Answer, Wire

GROUP = f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.templates.capelin.test"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
DRY_RUN = {"topology.cluster.x-k8s.io/dry-run": ""}


class Spec(Model):
    """Desired state of a machine."""

    size: Annotated[str, MaxLen(9)] = "small"


@kind(group=GROUP, version="v1")
class MachineTemplate(Template[Spec]):
    """A template of machines."""


COLLECTION = MachineTemplate.resource.path("default")


def test_a_template_holds_metadata_and_spec() -> None:
    schema = crd(MachineTemplate)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert schema["properties"]["spec"] == {
        "description": "Desired state of the template.",
        "type": "object",
        "properties": {
            "template": {
                "description": "The objects to create from the template.",
                "type": "object",
                "properties": {
                    "metadata": {
                        "description": "Labels and annotations of the created objects.",
                        "type": "object",
                        "properties": {
                            "labels": {
                                "description": "Labels of the created objects.",
                                "type": "object",
                                "maxProperties": 128,
                                "additionalProperties": {
                                    "type": "string",
                                    "maxLength": 63,
                                    "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$",
                                },
                            },
                            "annotations": {
                                "description": "Annotations of the created objects.",
                                "type": "object",
                                "maxProperties": 128,
                                "additionalProperties": {"type": "string", "maxLength": 262144},
                            },
                        },
                    },
                    "spec": {
                        "description": "Desired state of a machine.",
                        "type": "object",
                        "properties": {
                            "size": {"type": "string", "maxLength": 9, "default": "small"}
                        },
                    },
                },
                "required": ["spec"],
            }
        },
        "required": ["template"],
    }


@pytest.fixture(scope="module")
def policed(wire: Wire, install: Install) -> Iterator[Wire]:
    """An API server with a template and an active policy."""
    install(MachineTemplate)
    policies: list[str] = []
    for manifest in immutable_templates(f"templates.{GROUP}", MachineTemplate):
        plural = f"{manifest['kind'].lower()}s".replace("policys", "policies")
        policies.append(f"{ADMISSION}/{plural}/{manifest['metadata']['name']}")
        answer = wire.apply(policies[-1], manifest)
        assert (answer.status, answer.warnings) == (201, []), answer.body
    template = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "MachineTemplate",
        "metadata": {"name": "one"},
        "spec": {"template": {"spec": {"size": "small"}}},
    }
    assert wire.send("POST", COLLECTION, template).status == 201
    wait_until(lambda: resized(wire, dry_run=True).status != 200)
    yield wire
    for policy in policies:
        wire.send("DELETE", policy)


def resized(
    wire: Wire, *, dry_run: bool = False, annotations: dict[str, str] | None = None
) -> Answer:
    change = {
        "metadata": {"annotations": annotations or {}},
        "spec": {"template": {"spec": {"size": "big"}}},
    }
    path = f"{COLLECTION}/one" + ("?dryRun=All" if dry_run else "")
    return wire.send("PATCH", path, change, "application/merge-patch+json")


def test_the_spec_of_a_template_is_immutable(policed: Wire) -> None:
    answer = resized(policed)
    assert answer.status == 422
    assert "spec.template.spec is immutable, because existing objects" in answer.message


def test_the_topology_controller_may_dry_run_a_change(policed: Wire) -> None:
    assert resized(policed, dry_run=True, annotations=DRY_RUN).status == 200


def test_a_dry_run_without_the_annotation_fails(policed: Wire) -> None:
    assert resized(policed, dry_run=True, annotations={"other": ""}).status == 422


def test_the_annotation_permits_only_dry_runs(policed: Wire) -> None:
    assert resized(policed, annotations=DRY_RUN).status == 422


def test_labels_of_the_created_objects_may_change(policed: Wire) -> None:
    change = {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}
    path = f"{COLLECTION}/one"
    assert policed.send("PATCH", path, change, "application/merge-patch+json").status == 200
