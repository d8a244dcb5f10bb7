"""A real API server selects objects by the fields that their kind declares."""

import asyncio
from collections.abc import Callable
from typing import Annotated

from annotated_types import Ge, Le, MaxLen
from capelin.api import Definition, Model, Object, kind
from capelin.client import Client


class Spec(Model):
    room: Annotated[str, MaxLen(63)] = ""
    lit: bool = False


class Status(Model):
    fish: Annotated[int, Ge(0), Le(99)] = 0


SELECTABLE = Definition(selectable=("spec.room", "spec.lit", "status.fish"))


@kind(group="selectable.capelin.test", version="v1", definition=SELECTABLE)
class Tank(Object[Spec, Status]):
    """A tank."""


async def test_objects_are_selected_by_their_fields(
    client: Client, namespace: str, install_crds: Callable[..., None]
) -> None:
    await asyncio.to_thread(install_crds, Tank)
    for name, lit in (("a", True), ("b", True), ("c", False)):
        room = "small" if name == "a" else "large"
        await client.create(Tank.of(name, namespace, spec=Spec(room=room, lit=lit)))
    await client.patch(Tank, "b", namespace, {"status": {"fish": 3}}, subresource="status")

    async def names(**fields: str) -> list[str]:
        wanted = {path.replace("_", "."): value for path, value in fields.items()}
        return [tank.name for tank in (await client.list(Tank, namespace, fields=wanted)).items]

    assert await names(spec_room="large") == ["b", "c"]
    assert await names(spec_room="large", spec_lit="true") == ["b"]
    assert await names(status_fish="3") == ["b"]
    assert await names(spec_room="none") == []
