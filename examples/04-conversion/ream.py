"""A provider whose machine has two versions: `spec.pages` became `spec.sheets`."""

import sys
from dataclasses import replace
from typing import Annotated

from annotated_types import Ge, Le
from capelin.api import Object, Unstructured, converts, kind, move_field
from capelin.controller import Done, Result, main
from capelin.provider import (
    INFRA_MACHINE,
    InfraMachineContext,
    InfraMachineReconciler,
    InfraMachineSpec,
    InfraMachineStatus,
    Provider,
)

GROUP = "infrastructure.cluster.x-k8s.io"


class ReamSpec(InfraMachineSpec):
    """Desired state of a ream."""

    sheets: Annotated[int, Ge(0), Le(500)] = 1
    """Number of sheets. Each has two pages."""


@kind(group=GROUP, version="v1beta1", definition=INFRA_MACHINE)
class Ream(Object[ReamSpec, InfraMachineStatus]):
    """A machine on paper."""


# The first version


class ReamSpecV1Alpha1(InfraMachineSpec):
    """Desired state of a ream."""

    pages: Annotated[int, Ge(0), Le(1000)] = 2
    """Number of pages."""


OLD = replace(INFRA_MACHINE, deprecated="use v1beta1, with spec.sheets instead of spec.pages")


@kind(group=GROUP, version="v1alpha1", name="Ream", definition=OLD)
class ReamV1Alpha1(Object[ReamSpecV1Alpha1, InfraMachineStatus]):
    """A machine on paper."""


@converts(ReamV1Alpha1, Ream)
def upgrade(ream: Unstructured) -> None:
    move_field(ream, "spec.pages", "spec.sheets", lambda pages: (pages + 1) // 2)


@converts(Ream, ReamV1Alpha1)
def downgrade(ream: Unstructured) -> None:
    move_field(ream, "spec.sheets", "spec.pages", lambda sheets: 2 * sheets)


# The controller uses the stored version only


class Reams(InfraMachineReconciler[Ream]):
    async def reconcile_normal(self, ctx: InfraMachineContext, ream: Ream) -> Result:
        ctx.set_provisioned(f"ream:///{ream.namespace}/{ream.name}")
        return Done()


def provider() -> Provider:
    return Provider.of(
        "ream",
        "InfrastructureProvider",
        version="v0.2.0",
        module="ream",
        reconcilers=[Reams],
        kinds=[ReamV1Alpha1],
        manager="capelin-ream",
    )


if __name__ == "__main__":
    sys.exit(main("capelin-ream", lambda _: [Reams()]))
