"""Template kinds, from which ClusterClasses and owners of Machines create objects.

`FooTemplate` holds the metadata and the spec of a `Foo` under `spec.template`:

    @kind(group=GROUP, version="v1alpha1", definition=...)
    class FooTemplate(Template[FooSpec]): ...

Existing objects do not follow changes of their template, so its spec must not change. The topology
controller tries out changes nonetheless, as dry runs with an annotation that a CRD's rules cannot
read. So `immutable_templates` is an admission policy.
"""

from typing import Annotated, Any, Generic, TypeVar

from annotated_types import MaxLen

from capelin.api.admission import admission_policy
from capelin.api.fields import LabelValue
from capelin.api.model import Model
from capelin.api.objects import BaseObject, Unstructured

SpecT = TypeVar("SpecT", bound=Model)


class TemplateMetadata(Model):
    """Labels and annotations of the created objects."""

    labels: Annotated[dict[str, LabelValue], MaxLen(128)] = {}
    """Labels of the created objects."""

    annotations: Annotated[dict[str, Annotated[str, MaxLen(262144)]], MaxLen(128)] = {}
    """Annotations of the created objects."""


class TemplateResource(Model, Generic[SpecT]):
    """The objects to create from the template."""

    metadata: TemplateMetadata = TemplateMetadata()
    """Labels and annotations of the created objects."""

    spec: SpecT


class TemplateSpec(Model, Generic[SpecT]):
    """Desired state of the template."""

    template: TemplateResource[SpecT]
    """The objects to create from the template."""


class Template(BaseObject, Generic[SpecT]):
    """A template for objects."""

    spec: TemplateSpec[SpecT]
    """Desired state of the template."""


def immutable_templates(name: str, *kinds: type[Template[Any]]) -> list[Unstructured]:
    """The admission policy, and its binding, that keeps the specs of templates immutable."""
    allowed = (
        "object.spec.template.spec == oldObject.spec.template.spec"
        " || request.dryRun && has(object.metadata.annotations)"
        " && 'topology.cluster.x-k8s.io/dry-run' in object.metadata.annotations"
    )
    rules = [
        {
            "apiGroups": [kind.resource.group],
            "apiVersions": ["*"],
            "operations": ["UPDATE"],
            "resources": [kind.resource.plural],
        }
        for kind in kinds
    ]
    validation = {
        "expression": allowed,
        "message": "spec.template.spec is immutable, because existing objects would not follow a"
        " change. Create another template and refer to it",
        "reason": "Invalid",
    }
    return admission_policy(name, rules, [validation])
