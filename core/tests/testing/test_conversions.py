"""Generated objects show a conversion that loses values, fails, or makes invalid objects."""

from collections.abc import Callable
from itertools import count
from typing import Annotated, Any

import pytest
from annotated_types import Ge, Le
from capelin.api import ConversionError, Model, Object, Unstructured, converts, kind, move_field
from capelin.provider import (
    INFRA_MACHINE,
    InfraMachineReconciler,
    InfraMachineSpec,
    InfraMachineStatus,
    Provider,
)
from capelin.testing.conversions import check_conversions

GROUP = "infrastructure.cluster.x-k8s.io"
NUMBERS = count()
Count = Annotated[int, Ge(0), Le(10)]
Converter = Callable[[Unstructured], None]


class OldSpec(InfraMachineSpec):
    fins: Count
    scales: Count | None = None


class NewSpec(InfraMachineSpec):
    class Body(Model):
        fins: Count

    body: Body
    scales: Count | None = None


def upgrade(fish: Unstructured) -> None:
    move_field(fish, "spec.fins", "spec.body.fins")


def downgrade(fish: Unstructured) -> None:
    move_field(fish, "spec.body.fins", "spec.fins")


def provider(upgrade: Converter, downgrade: Converter) -> Provider:
    """A provider with two versions of a kind, whose name no other test has."""
    name = f"Fish{next(NUMBERS)}"

    @kind(group=GROUP, version="v1alpha1", name=name, definition=INFRA_MACHINE)
    class Old(Object[OldSpec, InfraMachineStatus]):
        """A fish."""

    @kind(group=GROUP, version="v1beta1", name=name, definition=INFRA_MACHINE)
    class New(Object[NewSpec, InfraMachineStatus]):
        """A fish."""

    class Fishes(InfraMachineReconciler[New]):
        async def reconcile_normal(self, *_: object) -> Any: ...

    converts(Old, New)(upgrade)
    converts(New, Old)(downgrade)
    return Provider.of(
        "fish",
        "InfrastructureProvider",
        version="v0.1.0",
        module="fish",
        reconcilers=[Fishes],
        kinds=[Old],
    )


def without_scales(fish: Unstructured) -> None:
    upgrade(fish)
    fish.get("spec", {}).pop("scales", None)


def halved(fish: Unstructured) -> None:
    move_field(fish, "spec.fins", "spec.body.fins", lambda fins: fins // 2)


def doubled(fish: Unstructured) -> None:
    move_field(fish, "spec.body.fins", "spec.fins", lambda fins: min(fins * 2, 10))


def forgotten(_: Unstructured) -> None: ...


def too_many(fish: Unstructured) -> None:
    move_field(fish, "spec.fins", "spec.body.fins", lambda fins: fins + 1)


def one_fewer(fish: Unstructured) -> None:
    move_field(fish, "spec.body.fins", "spec.fins", lambda fins: fins - 1)


def only_with_a_spec(fish: Unstructured) -> None:
    fish["spec"]["body"] = {"fins": fish["spec"].pop("finns")}


def test_conversions_without_loss_pass() -> None:
    check_conversions(provider(upgrade, downgrade))


@pytest.mark.parametrize(
    ("upgrade", "downgrade", "problem"),
    [
        (without_scales, downgrade, r"v1alpha1 to v1beta1 and back loses Fish\d+.spec.scales:"),
        (halved, doubled, r"v1alpha1 to v1beta1 and back loses Fish\d+.spec.fins:"),
        (forgotten, forgotten, r"makes an invalid object.*'missing'"),
        (too_many, one_fewer, r"makes an invalid object.*less_than_equal"),
        (only_with_a_spec, downgrade, r"failed with KeyError"),
    ],
)
def test_a_faulty_conversion_fails(upgrade: Converter, downgrade: Converter, problem: str) -> None:
    with pytest.raises((AssertionError, ConversionError), match=problem):
        check_conversions(provider(upgrade, downgrade))


def test_fields_that_one_version_cannot_express_are_allowed_by_name() -> None:
    fishes = provider(halved, doubled)
    kinds = {crd["spec"]["names"]["kind"].removesuffix("Template") for crd in fishes.crds}
    check_conversions(
        fishes,
        kept=[f"{kind}.{path}" for kind in kinds for path in ("spec.fins", "spec.body.fins")],
    )
