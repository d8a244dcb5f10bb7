"""The provider that the engine talks to: finds the resource's handler and translates values."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from typing import Any, Final

from capelin.api import Model
from pulumi.provider.experimental import provider as rpc
from pulumi.provider.experimental.property_value import PropertyValue
from pydantic import ValidationError
from pydantic.alias_generators import to_snake

from capelin_infra.plugin.admission_check_handler import AdmissionCheckHandler
from capelin_infra.plugin.environment_handler import EnvironmentHandler
from capelin_infra.plugin.kind_cluster_handler import KindClusterHandler
from capelin_infra.plugin.resource import (
    Difference,
    Operation,
    PartlyCreatedError,
    ResourceHandler,
    all_values,
)
from capelin_infra.plugin.schema import schema_json
from capelin_infra.plugin.server import InitFailedError, Report
from capelin_infra.plugin.values import Properties, known_values, property_values
from capelin_infra.plugin.workload_cluster_handler import WorkloadClusterHandler
from capelin_infra.resource_types import secrets_of

Handler = ResourceHandler[Any, Any]
HANDLERS: Final[Sequence[Handler]] = (
    KindClusterHandler(),
    EnvironmentHandler(),
    WorkloadClusterHandler(),
    AdmissionCheckHandler(),
)


class CapelinProvider(rpc.Provider):
    """Serves the resource types of the package."""

    def __init__(
        self, version: str, report: Report, handlers: Sequence[Handler] = HANDLERS
    ) -> None:
        self._version = version
        self._report = report
        self._handlers = {handler.kind.token: handler for handler in handlers}
        self._running: set[asyncio.Task[Any]] = set()

    async def get_schema(self, request: rpc.GetSchemaRequest) -> rpc.GetSchemaResponse:
        del request
        kinds = [handler.kind for handler in self._handlers.values()]
        return rpc.GetSchemaResponse(schema_json(self._version, kinds))

    async def check_config(self, request: rpc.CheckRequest) -> rpc.CheckResponse:
        return rpc.CheckResponse(inputs=request.new_inputs)

    async def diff_config(self, request: rpc.DiffRequest) -> rpc.DiffResponse:
        del request
        return rpc.DiffResponse(changes=False)

    async def configure(self, request: rpc.ConfigureRequest) -> rpc.ConfigureResponse:
        del request
        return rpc.ConfigureResponse(accept_secrets=True, supports_preview=True)

    async def cancel(self) -> None:
        """End running operations. The engine gets everything that exists by then."""
        for task in self._running:
            task.cancel()

    async def check(self, request: rpc.CheckRequest) -> rpc.CheckResponse:
        handler = self._handler(request.type)
        values, unknown = known_values(request.new_inputs)
        try:
            inputs = handler.kind.inputs.model_validate(values)
        except ValidationError as error:
            # Unknown values are not missing.
            failures = [
                rpc.CheckFailure(_path(details["loc"]), details["msg"])
                for details in error.errors()
                if str(details["loc"][0]) not in unknown
            ]
            return rpc.CheckResponse(inputs=request.new_inputs, failures=failures)
        problems = {} if unknown else handler.check(inputs)
        return rpc.CheckResponse(
            inputs={**_properties(handler, inputs, request.new_inputs, unknown)},
            failures=[rpc.CheckFailure(name, reason) for name, reason in problems.items()],
        )

    async def diff(self, request: rpc.DiffRequest) -> rpc.DiffResponse:
        handler = self._handler(request.type)
        old = handler.kind.state.read(known_values(request.old_state)[0])
        values, unknown = known_values(request.new_inputs)
        # Unknown values may stay the same: only the others can require a replacement.
        kept = {name: value for name, value in all_values(old).items() if name in unknown}
        new = handler.kind.inputs.read({**values, **kept})
        difference = handler.diff(old, new)
        unknown -= set(request.ignore_changes)
        replaced = difference.replaced | unknown & handler.kind.clusters
        return _difference(Difference(difference.changed | unknown, replaced))

    async def create(self, request: rpc.CreateRequest) -> rpc.CreateResponse:
        handler = self._handler(request.type)
        values, unknown = known_values(request.properties)
        if request.preview:
            unknown |= handler.kind.outputs
            given = _properties(handler, values, request.properties, unknown)
            return rpc.CreateResponse(None, given)
        inputs = handler.kind.inputs.model_validate(values)
        given = request.properties
        async with self._operation(handler, request.urn, request.timeout, given) as operation:
            id_, state = await handler.create(inputs, operation)
        return rpc.CreateResponse(id_, _properties(handler, state, given))

    async def read(self, request: rpc.ReadRequest) -> rpc.ReadResponse:
        handler = self._handler(request.type)
        values, _ = known_values(request.properties)
        before = handler.kind.state.read(values) if values else None
        state = await handler.read(request.resource_id, before)
        if state is None:
            return rpc.ReadResponse(None, {}, {})
        inputs = handler.kind.inputs.read(all_values(state))
        return rpc.ReadResponse(
            request.resource_id,
            _properties(handler, state, request.properties),
            _properties(handler, inputs, request.properties),
        )

    async def update(self, request: rpc.UpdateRequest) -> rpc.UpdateResponse:
        handler = self._handler(request.type)
        values, unknown = known_values(request.news)
        if request.preview:
            outputs = handler.kind.outputs
            stable, _ = known_values(request.olds)
            known = {name: value for name, value in stable.items() if name in outputs}
            given = _properties(handler, {**known, **values}, request.news, unknown)
            return rpc.UpdateResponse(given)
        old = handler.kind.state.read(known_values(request.olds)[0])
        new = handler.kind.inputs.model_validate(values)
        given = request.news
        async with self._operation(handler, request.urn, request.timeout, given) as operation:
            state = await handler.update(request.resource_id, old, new, operation)
        return rpc.UpdateResponse(_properties(handler, state, given))

    async def delete(self, request: rpc.DeleteRequest) -> None:
        handler = self._handler(request.type)
        given = request.properties
        state = handler.kind.state.read(known_values(given)[0])
        async with self._operation(handler, request.urn, request.timeout, given) as operation:
            await handler.delete(request.resource_id, state, operation)

    def _handler(self, type_: str) -> Handler:
        # The SDK takes the type from the URN, where the types of the parents stand before it.
        return self._handlers[type_.rpartition("$")[2]]

    @asynccontextmanager
    async def _operation(
        self, handler: Handler, urn: str, seconds: float, given: Properties
    ) -> AsyncGenerator[Operation]:
        """An operation that `cancel` and the clock can end."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - the server runs each request in a task
        self._running.add(task)
        try:
            yield Operation(
                urn, seconds or handler.seconds, lambda message: self._report(urn, message)
            )
        except PartlyCreatedError as error:
            properties = _properties(handler, error.state, given)
            raise InitFailedError(error.id, properties, error.cause) from error
        finally:
            self._running.discard(task)


def _properties(
    handler: Handler,
    values: Model | Mapping[str, Any],
    given: Properties,
    unknown: AbstractSet[str] = frozenset(),
) -> dict[str, PropertyValue]:
    """A state, or some of its values, in the engine's format. Secrets of `given` stay secrets."""
    if isinstance(values, Model):
        values = all_values(values)
    marked = {name for name, value in given.items() if value.contains_secret()}
    secrets = secrets_of(handler.kind.state) | marked
    return property_values(values, secrets=secrets, unknown=unknown)


def _difference(difference: Difference) -> rpc.DiffResponse:
    changed = sorted(difference.changed)
    kinds = rpc.PropertyDiffKind
    return rpc.DiffResponse(
        changes=bool(changed),
        diffs=changed,
        replaces=sorted(difference.replaced),
        # Its replacement has the same name.
        delete_before_replace=bool(difference.replaced),
        detailed_diff={
            name: rpc.PropertyDiff(
                kinds.UPDATE_REPLACE if name in difference.replaced else kinds.UPDATE,
                input_diff=False,
            )
            for name in changed
        },
    )


def _path(location: Sequence[int | str]) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{to_snake(part)}" for part in location)
    return "".join(parts).removeprefix(".")
