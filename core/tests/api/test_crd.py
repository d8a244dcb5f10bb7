"""Complete CRDs."""

# ruff: noqa: E501 - patterns are as long as they are

from typing import Annotated, Any, Literal

import pytest
import yaml
from annotated_types import MaxLen
from capelin.api import (
    BaseObject,
    Column,
    Conditions,
    Definition,
    Model,
    Object,
    Scale,
    SchemaError,
    Unstructured,
    crd,
    immutable,
    kind,
)
from capelin.api.fields import Int32, KubernetesVersion, Replicas

GROUP = "controlplane.capelin.test"


def to_yaml(manifests: list[Unstructured]) -> str:
    return yaml.safe_dump_all(
        manifests, sort_keys=False, explicit_start=True, width=100, allow_unicode=True
    )


class Spec(Model):
    """Desired state of a control plane."""

    version: KubernetesVersion
    """The version of Kubernetes."""

    backend: Annotated[Literal["Processes", "Pods"], immutable()] = "Processes"
    replicas: Replicas = 1


class Status(Model):
    """Observed state of a control plane."""

    replicas: Replicas | None = None
    selector: Annotated[str, MaxLen(256)] | None = None
    conditions: Conditions = []


@kind(
    group=GROUP,
    version="v1alpha1",
    definition=Definition(
        contracts=("v1beta1", "v1beta2"),
        scale=Scale(selector=".status.selector"),
        columns=(
            Column("Version", ".spec.version"),
            Column("Age", ".metadata.creationTimestamp", "date", "How old it is", priority=1),
        ),
        short_names=("cp",),
        categories=("cluster-api",),
        labels={"a": "b"},
    ),
)
class ControlPlane(Object[Spec, Status]):
    """A control plane."""


@kind(
    group=GROUP,
    version="v1beta1",
    name="ControlPlane",
    definition=Definition(contracts=("v1beta2",)),
)
class Newer(Object[Spec, Status]):
    """A control plane."""


@kind(group=GROUP, version="v1", namespaced=False)
class Plain(BaseObject):
    """A kind without spec, status or anything."""


def test_a_complete_crd() -> None:
    assert (
        to_yaml([crd(ControlPlane, provider="control-plane-capelin")])
        == """\
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: controlplanes.controlplane.capelin.test
  labels:
    a: b
    cluster.x-k8s.io/provider: control-plane-capelin
    cluster.x-k8s.io/v1beta1: v1alpha1
    cluster.x-k8s.io/v1beta2: v1alpha1
    clusterctl.cluster.x-k8s.io: ''
spec:
  group: controlplane.capelin.test
  names:
    kind: ControlPlane
    listKind: ControlPlaneList
    plural: controlplanes
    singular: controlplane
    shortNames:
    - cp
    categories:
    - cluster-api
  scope: Namespaced
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        description: A control plane.
        type: object
        properties:
          apiVersion:
            type: string
          kind:
            type: string
          metadata:
            type: object
          spec:
            description: Desired state of a control plane.
            type: object
            properties:
              version:
                description: The version of Kubernetes.
                type: string
                maxLength: 64
                pattern: ^v?[0-9]{1,3}\\.[0-9]{1,4}\\.[0-9]{1,4}(-[0-9A-Za-z.-]+)?(\\+[0-9A-Za-z.-]+)?$
              backend:
                type: string
                enum:
                - Processes
                - Pods
                x-kubernetes-validations:
                - rule: self == oldSelf
                  message: cannot be changed once it is set
                default: Processes
              replicas:
                type: integer
                maximum: 2147483647
                minimum: 0
                format: int32
                default: 1
            required:
            - version
          status:
            description: Observed state of a control plane.
            type: object
            properties:
              replicas:
                type: integer
                maximum: 2147483647
                minimum: 0
                format: int32
              selector:
                type: string
                maxLength: 256
              conditions:
                type: array
                maxItems: 32
                items:
                  description: A condition of an object, as Kubernetes' `metav1.Condition`.
                  type: object
                  properties:
                    type:
                      description: Type of the condition, such as `Available`.
                      type: string
                      maxLength: 316
                      minLength: 1
                      pattern: ^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$
                    status:
                      description: Status of the condition, one of True, False, Unknown.
                      type: string
                      enum:
                      - 'True'
                      - 'False'
                      - Unknown
                    reason:
                      description: Reason for the status, in one CamelCase word.
                      type: string
                      maxLength: 1024
                      minLength: 1
                      pattern: ^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$
                    message:
                      description: Details about the status, for people.
                      type: string
                      maxLength: 32768
                      default: ''
                    lastTransitionTime:
                      description: Time of the last change of the status.
                      type: string
                      format: date-time
                      pattern: ^(0001-01-01T00:00:00Z|[12][0-9]{3}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,9})?([Zz]|[+-](0[0-9]|1[0-9]|2[0-3]):[0-5][0-9]))$
                    observedGeneration:
                      description: Generation of the spec that the condition was set for.
                      type: integer
                      maximum: 9007199254740992
                      minimum: 0
                      format: int64
                  required:
                  - lastTransitionTime
                  - reason
                  - status
                  - type
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys:
                - type
        required:
        - spec
    subresources:
      status: {}
      scale:
        specReplicasPath: .spec.replicas
        statusReplicasPath: .status.replicas
        labelSelectorPath: .status.selector
    additionalPrinterColumns:
    - name: Version
      type: string
      jsonPath: .spec.version
    - name: Age
      type: date
      jsonPath: .metadata.creationTimestamp
      description: How old it is
      priority: 1
"""
    )


def test_the_same_types_give_the_same_text() -> None:
    assert to_yaml([crd(ControlPlane)]) == to_yaml([crd(ControlPlane)])


def test_the_last_version_is_stored_and_contracts_name_their_versions() -> None:
    definition = crd(ControlPlane, Newer)
    versions = definition["spec"]["versions"]
    assert [(v["name"], v["served"], v["storage"]) for v in versions] == [
        ("v1alpha1", True, False),
        ("v1beta1", True, True),
    ]
    assert definition["metadata"]["labels"] == {
        "cluster.x-k8s.io/v1beta1": "v1alpha1",
        "cluster.x-k8s.io/v1beta2": "v1alpha1_v1beta1",
        "clusterctl.cluster.x-k8s.io": "",
    }


def test_crd_rejects_versions_of_different_kinds() -> None:
    with pytest.raises(SchemaError, match="the versions of ControlPlane differ in group or names"):
        crd(Plain, ControlPlane)


def test_a_plain_kind_has_no_labels_and_no_subresources() -> None:
    definition = crd(Plain)
    assert definition["metadata"] == {"name": f"plains.{GROUP}", "labels": {}}
    assert definition["spec"]["scope"] == "Cluster"
    assert definition["spec"]["versions"][0].keys() == {"name", "served", "storage", "schema"}


def test_crd_rejects_a_scale_path_to_a_missing_field() -> None:
    @kind(group=GROUP, version="v1", definition=Definition(scale=Scale(selector=".status.gone")))
    class Scaled(Object[Spec, Status]):
        pass

    with pytest.raises(SchemaError, match=r"scale: field \.status\.gone does not exist"):
        crd(Scaled)


def test_crd_rejects_a_scale_of_a_field_that_may_be_negative() -> None:
    class Loose(Model):
        replicas: Int32 = 1

    @kind(group=GROUP, version="v1", definition=Definition(scale=Scale()))
    class Scaled(Object[Loose, Status]):
        pass

    with pytest.raises(SchemaError, match=r"scale: \.spec\.replicas has to be Replicas"):
        crd(Scaled)


class Wider(Model):
    version: KubernetesVersion
    size: Int32 = 1
    renamed: Replicas = 0


def test_crd_rejects_versions_with_different_schemas() -> None:
    @kind(group=GROUP, version="v1", name="ControlPlane")
    class Changed(Object[Wider, Status]):
        """A control plane."""

    with pytest.raises(SchemaError) as caught:
        crd(ControlPlane, Changed)
    message = str(caught.value)
    assert "ControlPlane v1alpha1 and v1 differ, and nothing converts between them" in message
    assert "spec.size" in message
    assert "spec.renamed" in message
    assert "or serve one version only" in message


def test_versions_may_differ_in_their_descriptions() -> None:
    @kind(group=GROUP, version="v1", name="ControlPlane")
    class Described(Object[Spec, Status]):
        """A different description."""

    assert len(crd(ControlPlane, Described)["spec"]["versions"]) == 2


def test_an_undecorated_class_fails_and_names_the_decorator() -> None:
    class NoKind(Object[Spec, Status]):
        """Not decorated."""

    with pytest.raises(TypeError, match=r"NoKind is not a kind: decorate it with @kind\(group="):
        crd(NoKind)
    with pytest.raises(TypeError, match="NoKind is not a kind"):
        NoKind.of("a", spec=Spec(version="v1.34.4")).dump()


@pytest.mark.parametrize("contracts", ["v1beta2", ("v1beta3",)])
def test_a_definition_rejects_unknown_contracts(contracts: Any) -> None:
    with pytest.raises(ValueError, match="must be a tuple of v1beta1 and v1beta2"):
        Definition(contracts=contracts)


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        (("spec.gone",), "selectable: spec.gone has to be a string"),
        (("spec",), "selectable: spec has to be a string"),
        (("spec.version",) * 9, "at most eight fields"),
    ],
)
def test_crd_rejects_fields_that_cannot_be_selected(paths: tuple[str, ...], problem: str) -> None:
    @kind(group=GROUP, version="v1", definition=Definition(selectable=paths))
    class Unselectable(Object[Spec, Status]):
        """A kind."""

    with pytest.raises(SchemaError, match=problem):
        crd(Unselectable)
