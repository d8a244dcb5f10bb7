"""Who may do what."""

from typing import Annotated

from capelin.api.model import Model
from capelin.api.objects import BaseObject, kind
from capelin.api.views.core.shared import NULL_IS_EMPTY, LabelSelector


class PolicyRule(Model):
    """Verbs on resources, or on URLs."""

    verbs: list[str]
    api_groups: list[str] = []
    resources: list[str] = []
    resource_names: list[str] = []
    non_resource_urls: list[str] = []


class Subject(Model):
    """Somebody to whom a role is given."""

    kind: str
    name: str
    namespace: str | None = None
    api_group: str | None = None


class RoleRef(Model):
    """The role that is given."""

    api_group: str
    kind: str
    name: str


class AggregationRule(Model):
    """Cluster roles whose rules are gathered into another."""

    cluster_role_selectors: list[LabelSelector] = []


@kind(group="rbac.authorization.k8s.io", version="v1")
class Role(BaseObject):
    """What may be done in a namespace."""

    rules_: Annotated[list[PolicyRule], NULL_IS_EMPTY] = []


@kind(group="rbac.authorization.k8s.io", version="v1", namespaced=False)
class ClusterRole(BaseObject):
    """What may be done everywhere."""

    rules_: Annotated[list[PolicyRule], NULL_IS_EMPTY] = []
    aggregation_rule: AggregationRule | None = None


@kind(group="rbac.authorization.k8s.io", version="v1")
class RoleBinding(BaseObject):
    """Who may do it in a namespace."""

    subjects: list[Subject] = []
    role_ref: RoleRef | None = None


@kind(group="rbac.authorization.k8s.io", version="v1", namespaced=False)
class ClusterRoleBinding(BaseObject):
    """Who may do it everywhere."""

    subjects: list[Subject] = []
    role_ref: RoleRef | None = None
