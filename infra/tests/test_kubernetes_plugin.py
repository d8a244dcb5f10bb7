"""The stand-in for the plugin of pulumi-kubernetes: its decisions and its credentials."""

from typing import Any

import pytest
from capelin.api import Unstructured
from capelin_infra.plugin.values import property_values
from pulumi.provider.experimental import provider as rpc

from infra.tests.kubernetes_plugin.objects import (
    changed_fields,
    named,
    not_ready_reason,
    picked,
    propagation_policy,
)
from infra.tests.kubernetes_plugin.provider import KubernetesProvider


def obj(kind: str = "ConfigMap", **fields: Any) -> Unstructured:
    metadata: dict[str, Any] = {"name": "one", "namespace": "default", **fields.pop("metadata", {})}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields}


def annotated(**annotations: str) -> dict[str, Any]:
    return {"annotations": {f"pulumi.com/{key}": value for key, value in annotations.items()}}


def test_an_object_without_a_name_gets_a_generated_one() -> None:
    first, second = named({"kind": "ConfigMap"}, "one"), named({"kind": "ConfigMap"}, "one")
    assert first["metadata"]["name"].startswith("one-")
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert named(obj(), "other")["metadata"]["name"] == "one"


def test_a_new_name_replaces_an_object_and_a_new_label_does_not() -> None:
    assert changed_fields(obj(), obj()) == (set(), set())
    labelled = changed_fields(obj(), obj(metadata={"labels": {"a": "b"}}))
    assert labelled == ({"metadata"}, set())
    renamed = changed_fields(obj(), obj(metadata={"name": "two"}))
    assert renamed == ({"metadata"}, {"metadata.name"})


def test_a_secret_with_other_data_is_replaced_like_in_the_real_plugin() -> None:
    _, replaced = changed_fields(obj("Secret", data={"a": "MQ=="}), obj("Secret", data={}))
    assert replaced == {"data"}


@pytest.mark.parametrize(
    ("waited_for", "reason"),
    [
        (obj(), None),
        (obj("CustomResourceDefinition"), "Established: not known yet"),
        (obj("CustomResourceDefinition", metadata=annotated(skipAwait="true")), None),
        (
            obj(metadata=annotated(waitFor="condition=Ready"), status={"conditions": []}),
            "Ready: not known yet",
        ),
        (
            obj(
                metadata=annotated(waitFor="condition=Ready"),
                status={"conditions": [{"type": "Ready", "status": "True"}]},
            ),
            None,
        ),
        (
            obj(metadata=annotated(waitFor="jsonpath={.status.phase}=Up"), status={"phase": "No"}),
            ".status.phase is No",
        ),
        (
            obj(
                "Deployment",
                metadata={"generation": 2},
                status={
                    "observedGeneration": 1,
                    "conditions": [{"type": "Available", "status": "True"}],
                },
            ),
            "the Deployment controller has not seen the change",
        ),
    ],
)
def test_an_unready_object_has_a_reason(waited_for: Unstructured, reason: str | None) -> None:
    assert not_ready_reason(waited_for) == reason


def test_deletion_is_in_the_foreground_unless_an_annotation_changes_it() -> None:
    assert propagation_policy(obj()) == "Foreground"
    background = annotated(deletionPropagationPolicy="background")
    assert propagation_policy(obj(metadata=background)) == "Background"


def test_only_fields_of_the_program_can_drift() -> None:
    desired = {"spec": {"replicas": 1, "list": [{"a": 1}]}}
    live = {"spec": {"replicas": 2, "list": [{"a": 1, "b": 2}], "other": True}, "status": {}}
    assert picked(desired, live) == {"spec": {"replicas": 2, "list": [{"a": 1}]}}


async def test_no_kubeconfig_sends_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    request = rpc.ConfigureRequest(
        {},
        property_values({"kubeconfig": str(tmp_path / "none")}, secrets=set(), unknown=set()),
        accept_secrets=True,
        accept_resources=True,
    )
    with pytest.raises(Exception, match="none"):
        await KubernetesProvider().configure(request)
