"""What a resource of the provider does: read, diff, create, update, delete, on plain models."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from capelin.api import Model

from capelin_infra.pulumi.plugin.types import Replaces, ResourceType, marked, property_names

InputsT = TypeVar("InputsT", bound=Model)
StateT = TypeVar("StateT", bound=Model)

Show = Callable[[str], None]
"""Shows people what an operation waits for."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What separates a resource from what it should be, by the names of its properties."""

    changed: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    """Those that only another resource can have."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the engine on one resource."""

    urn: str
    seconds: float
    """How long it may take."""
    show: Show


class PartlyCreatedError(Exception):
    """The resource exists and has to be in the state, but is not as desired yet.

    The next `up` goes on with it, and `destroy` removes it.
    """

    def __init__(self, id_: str, state: Model, cause: BaseException) -> None:
        super().__init__(f"{id_} is not complete: {cause}")
        self.id = id_
        self.state = state
        self.cause = cause


class ResourceHandler(ABC, Generic[InputsT, StateT]):
    """The behaviour of one resource type."""

    kind: ClassVar[ResourceType]
    seconds: ClassVar[float] = 600.0
    """How long an operation may take where the program sets no `custom_timeouts`."""

    def check(self, inputs: InputsT) -> dict[str, str]:
        """What cannot be, by property. The types have been checked."""
        del inputs
        return {}

    def diff(self, old: StateT, new: InputsT) -> Difference:
        """What has to change; pure."""
        return changed_inputs(self.kind, old, new)

    @abstractmethod
    async def create(self, inputs: InputsT, operation: Operation) -> tuple[str, StateT]:
        """Make it, or go on where an interrupted run of the same resource stopped."""

    @abstractmethod
    async def read(self, id_: str, state: StateT | None) -> StateT | None:
        """The resource as it is, None if it is gone. Without a state it is to be imported."""

    @abstractmethod
    async def update(self, id_: str, old: StateT, new: InputsT, operation: Operation) -> StateT:
        """Make it what it should be."""

    @abstractmethod
    async def delete(self, id_: str, state: StateT, operation: Operation) -> None:
        """Remove it; what is gone already is no error."""


def changed_inputs(
    kind: ResourceType, old: Model, new: Model, *, passed_over: frozenset[str] = frozenset()
) -> Difference:
    """The inputs that differ, and which of them cannot be changed."""
    before, after = all_values(old), all_values(new)
    names = property_names(kind.inputs) - passed_over
    changed = frozenset(name for name in names if before.get(name) != after.get(name))
    return Difference(changed, changed & marked(kind.inputs, Replaces))


def all_values(model: Model) -> dict[str, Any]:
    """The values of all fields, defaults included, as the engine names them."""
    return model.model_dump(mode="json", exclude_none=True)
