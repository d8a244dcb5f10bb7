"""Which kinds a provider has, which of them a topology may own, and which must not change."""

from typing import Any, ClassVar, Generic, TypeVar

from capelin.api import BaseObject, Definition, Model, Object, kind
from capelin.api.core import ConfigMap
from capelin.controller import Context, Done, For, Reconciler, Result
from capelin.provider import (
    INFRA_MACHINE,
    InfraMachineContext,
    InfraMachineReconciler,
    InfraMachineSpec,
    InfraMachineStatus,
    ProviderReconciler,
)
from capelin.provider.reconciler import contract_kinds, kinds_of, machine_templates

GROUP = "infrastructure.cluster.x-k8s.io"
T = TypeVar("T")


@kind(group=GROUP, version="v1alpha1", definition=INFRA_MACHINE)
class Crate(Object[InfraMachineSpec, InfraMachineStatus]):
    """A machine, whose contract requires a template."""


@kind(group=GROUP, version="v1alpha1", definition=Definition())
class Tag(Object[Model, Model]):
    """A kind of a provider without a template."""


@kind(group=GROUP, version="v1alpha1", definition=Definition())
class Settings(Object[Model, Model]):
    """A kind without a reconciler."""


class Countable(Generic[T]):
    """A base class with a generic argument of its own."""

    count: ClassVar[int] = 0


class Crates(InfraMachineReconciler[Crate]):
    async def reconcile_normal(self, ctx: InfraMachineContext, crate: Crate) -> Result:  # noqa: ARG002
        return Done()


class Tags(ProviderReconciler[Tag]):
    async def reconcile_normal(self, ctx: Any, tag: Tag) -> Result:  # noqa: ARG002
        return Done()


class Maps(Reconciler[ConfigMap]):
    """Reconciles a kind of Kubernetes."""

    watches = (For(ConfigMap),)

    async def reconcile(self, ctx: Context, obj: ConfigMap, /) -> Result:  # noqa: ARG002
        return Done()


RECONCILERS = (Crates, Tags, Maps)


def kinds() -> list[type[BaseObject]]:
    return [stored for *_, stored in kinds_of(RECONCILERS, [Settings])]


def names(kinds: list[Any]) -> list[str]:
    return [kind_.resource.kind for kind_ in kinds]


def test_a_provider_has_templates_of_the_kinds_whose_contract_requires_them() -> None:
    assert names(kinds()) == ["Settings", "Crate", "CrateTemplate", "Tag", "ConfigMap"]


def test_a_topology_may_own_the_kinds_of_a_contract_and_their_templates() -> None:
    assert names(contract_kinds(RECONCILERS, kinds())) == ["Crate", "CrateTemplate", "Tag"]


def test_templates_of_machines_must_not_change() -> None:
    assert names(machine_templates(RECONCILERS, kinds())) == ["CrateTemplate"]


def test_another_generic_base_class_does_not_name_the_kind() -> None:
    class Counted(Countable[int], InfraMachineReconciler[Crate]):
        async def reconcile_normal(self, ctx: InfraMachineContext, crate: Crate) -> Result:  # noqa: ARG002
            return Done()

    assert Counted.kind is Crate


async def test_a_reconciler_ignores_objects_of_another_controller() -> None:
    class Others(Tags):
        def ignores(self, obj: Tag) -> bool:  # noqa: ARG002
            return True

    unused: Any = None
    assert await Others().reconcile(unused, Tag.of("one", "sea", spec=Model())) == Done()
