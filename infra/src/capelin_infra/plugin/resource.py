"""The behaviour of a resource: read, diff, create, update, delete, on plain models."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from capelin.api import Model
from capelin.client import Config, ConfigError
from capelin.errors import UserError
from capelin_cli.terminal.waiting import Show
from capelin_embedded.binaries import BinariesError

from capelin_infra.resource_types import ResourceType, property_names

InputsT = TypeVar("InputsT", bound=Model)
StateT = TypeVar("StateT", bound=Model)


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences of a resource from its desired state, by the names of its properties."""

    changed: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    """Properties that only another resource can have."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the engine on one resource."""

    urn: str
    seconds: float
    """How long it may take."""
    show: Show


class PartlyCreatedError(Exception):
    """The resource exists and has to be in the state, but is not as desired yet.

    The next `up` continues with it, and `destroy` removes it.
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
        """Invalid values, by property. Their types are right."""
        del inputs
        return {}

    def diff(self, old: StateT, new: InputsT) -> Difference:
        """The properties that have to change. Pure."""
        return changed_inputs(self.kind, old, new)

    @abstractmethod
    async def create(self, inputs: InputsT, operation: Operation) -> tuple[str, StateT]:
        """Create it, or continue an interrupted run of the same resource."""

    @abstractmethod
    async def read(self, id_: str, state: StateT | None) -> StateT | None:
        """The resource as it is, None if it is gone. Without a state, the engine imports it."""

    @abstractmethod
    async def update(self, id_: str, old: StateT, new: InputsT, operation: Operation) -> StateT:
        """Change it to its desired state."""

    @abstractmethod
    async def delete(self, id_: str, state: StateT, operation: Operation) -> None:
        """Remove it. It may be gone already."""


def changed_inputs(
    kind: ResourceType, old: Model, new: Model, *, passed_over: frozenset[str] = frozenset()
) -> Difference:
    """The inputs that differ, and which of them cannot be changed."""
    before, after = all_values(old), all_values(new)
    names = property_names(kind.inputs) - passed_over
    changed = frozenset(name for name in names if before.get(name) != after.get(name))
    # A resource that did not name its cluster before stays.
    moved = {name for name in changed & kind.clusters if before.get(name) and after.get(name)}
    return Difference(changed, changed & kind.fixed | moved)


def all_values(model: Model) -> dict[str, Any]:
    """The values of all fields, including defaults, by the engine's names."""
    return model.model_dump(mode="json", exclude_none=True)


def failures(checks: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """Invalid values, by property, from checks that raise errors."""
    found: dict[str, str] = {}
    for name, check in checks.items():
        try:
            check()
        except UserError as error:
            found[name] = f"{error.message} {error.reason}"
        except (BinariesError, ConfigError) as error:
            found[name] = str(error)
    return found


def inputs_of(model: type[InputsT], state: Model) -> InputsT:
    """The inputs in a state."""
    return model.read(state.model_dump(mode="json"))


def text_of(path: Path) -> str:
    """A file's text. Empty if it does not exist."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def read_kubeconfig(content: str | None) -> None:
    """Reject an invalid kubeconfig. None is valid."""
    if content is not None:
        Config.from_kubeconfig(content.encode())
