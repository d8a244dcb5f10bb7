"""The stand-in's provider: server-side apply, waits, drift and deletion of plain objects."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from capelin.api import Unstructured
from capelin.client import ApiError, Client, Config, NotFound, NotServed, Unreachable
from capelin.errors import InvalidInputError, WaitTimeoutError
from capelin_infra.plugin.server import InitFailedError
from capelin_infra.plugin.values import known_values, property_values
from pulumi.provider.experimental import provider as rpc

from .objects import (
    changed_fields,
    id_of,
    named,
    not_ready_reason,
    picked,
    propagation_policy,
    without_unowned,
)

_MANAGER: Final = "pulumi-kubernetes"
_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.1
_INPUTS: Final = "inputs_of_program"
"""State key of the program's inputs: the SDK passes only the state to a diff."""


class KubernetesProvider(rpc.Provider):
    """Plain Kubernetes objects of one API server."""

    def __init__(self) -> None:
        self._config: Config | None = None
        self._delete_unreachable = False

    async def check_config(self, request: rpc.CheckRequest) -> rpc.CheckResponse:
        return rpc.CheckResponse(inputs=request.new_inputs)

    async def diff_config(self, request: rpc.DiffRequest) -> rpc.DiffResponse:
        del request
        return rpc.DiffResponse(changes=False)

    async def configure(self, request: rpc.ConfigureRequest) -> rpc.ConfigureResponse:
        values, unknown = known_values(request.args)
        if "kubeconfig" not in unknown:
            given: str | None = values.get("kubeconfig")
            content = given.encode() if given and "\n" in given else Path(given) if given else None
            context: str | None = values.get("context")
            self._config = (
                Config.from_kubeconfig(content, context) if content else Config.find(None, context)
            )
        # The engine passes a provider's settings on as text.
        self._delete_unreachable = str(values.get("deleteUnreachable")).lower() == "true"
        return rpc.ConfigureResponse(accept_secrets=True, supports_preview=True)

    async def cancel(self) -> None:
        return

    async def check(self, request: rpc.CheckRequest) -> rpc.CheckResponse:
        values, unknown = known_values(request.new_inputs)
        old, _ = known_values(request.old_inputs)
        if unknown:
            return rpc.CheckResponse(inputs=request.new_inputs)
        if not values.get("metadata", {}).get("name") and old:
            values = {**values, "metadata": {**values.get("metadata", {}), **old["metadata"]}}
        values = named(values, request.name)
        return rpc.CheckResponse(
            inputs=property_values(values, secrets=_secrets(values), unknown=set())
        )

    async def diff(self, request: rpc.DiffRequest) -> rpc.DiffResponse:
        old = known_values(request.old_state)[0][_INPUTS]
        new, unknown = known_values(request.new_inputs)
        kept = {key: value for key, value in old.items() if key in unknown}
        changed, replaced = changed_fields(old, {**new, **kept})
        changed |= unknown
        return rpc.DiffResponse(
            changes=bool(changed),
            diffs=sorted(changed),
            replaces=sorted(replaced),
            delete_before_replace=bool(replaced),
        )

    async def create(self, request: rpc.CreateRequest) -> rpc.CreateResponse:
        values, unknown = known_values(request.properties)
        if request.preview:
            return rpc.CreateResponse(
                None, property_values(values, secrets=_secrets(values), unknown=unknown)
            )
        state = await self._applied(values, request.timeout or _SECONDS)
        return rpc.CreateResponse(id_of(state), _state(state, values))

    async def update(self, request: rpc.UpdateRequest) -> rpc.UpdateResponse:
        values, unknown = known_values(request.news)
        if request.preview:
            return rpc.UpdateResponse(
                property_values(values, secrets=_secrets(values), unknown=unknown)
            )
        return rpc.UpdateResponse(
            _state(await self._applied(values, request.timeout or _SECONDS), values)
        )

    async def read(self, request: rpc.ReadRequest) -> rpc.ReadResponse:
        state, _ = known_values(request.properties)
        identity = state or _identity(request.type.rpartition("$")[2], request.resource_id)
        try:
            live = await self._find(identity)
        except Unreachable:
            if not self._delete_unreachable:
                raise
            live = None
        if live is None:
            return rpc.ReadResponse(None, {}, {})
        before = state.get(_INPUTS) or identity
        inputs = picked(before, live)
        return rpc.ReadResponse(
            request.resource_id,
            _state(live, inputs),
            property_values(inputs, secrets=_secrets(inputs), unknown=set()),
        )

    async def delete(self, request: rpc.DeleteRequest) -> None:
        state, _ = known_values(request.properties)
        try:
            async with self._client() as client:
                await _deleted(client, state, request.timeout or _SECONDS)
        except Unreachable:
            if not self._delete_unreachable:
                raise

    async def _applied(self, values: Unstructured, seconds: float) -> Unstructured:
        manifest = dict(values)
        async with self._client() as client:

            async def applied() -> Unstructured | None:
                try:
                    return await client.apply(manifest, force=False)
                except NotServed:
                    # Its CRD was just created.
                    return None

            obj = await _until(f"the kind {values['kind']} is served", applied, seconds)
            resource = await client.resource_of(manifest)
            metadata = obj["metadata"]
            reason: str | None = None

            async def ready() -> Unstructured | None:
                nonlocal reason
                live = await client.get(resource, metadata["name"], metadata.get("namespace"))
                reason = not_ready_reason({**live, "kind": values["kind"]})
                return live if reason is None else None

            try:
                return await _until(f"{values['kind']} {id_of(obj)} is ready", ready, seconds)
            except WaitTimeoutError as error:
                error.reason = f"Last: {reason}."
                raise InitFailedError(id_of(obj), _state(obj, values), error) from error

    async def _find(self, identity: Unstructured) -> Unstructured | None:
        metadata = identity["metadata"]
        async with self._client() as client:
            try:
                resource = await client.resource_of(identity)
            except NotServed:
                return None
            return await client.find(resource, metadata["name"], metadata.get("namespace"))

    def _client(self) -> Client:
        if self._config is None:
            raise InvalidInputError("The provider's kubeconfig is not known yet.")
        return Client(self._config, manager=_MANAGER)


async def _deleted(client: Client, state: Unstructured, seconds: float) -> None:
    metadata = state["metadata"]
    namespace = metadata.get("namespace")
    try:
        resource = await client.resource_of(state)
        await client.delete(
            resource,
            metadata["name"],
            namespace,
            uid=metadata.get("uid"),
            propagation=propagation_policy(state),
        )
    except (NotFound, NotServed):
        return

    async def gone() -> bool | None:
        try:
            live = await client.find(resource, metadata["name"], namespace)
        except (NotServed, ApiError):
            return True
        return True if live is None or live["metadata"]["uid"] != metadata.get("uid") else None

    await _until(f"{state['kind']} {id_of(state)} is deleted", gone, seconds)


async def _until(title: str, attempt: Callable[[], Awaitable[Any]], seconds: float) -> Any:
    try:
        async with asyncio.timeout(seconds):
            while True:
                result = await attempt()
                if result is not None:
                    return result
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise WaitTimeoutError(f"Waiting until {title} took longer than {seconds:.0f} s.") from None


def _state(live: Unstructured, inputs: Unstructured) -> dict[str, Any]:
    state = {**without_unowned(live), _INPUTS: inputs}
    state.setdefault("apiVersion", inputs.get("apiVersion"))
    state.setdefault("kind", inputs.get("kind"))
    return property_values(state, secrets=_secrets(state), unknown=set())


def _secrets(values: Unstructured) -> set[str]:
    return {"data", "stringData", _INPUTS} if values.get("kind") == "Secret" else set()


def _identity(type_: str, id_: str) -> Unstructured:
    """An object to import: `kubernetes:apps/v1:Deployment`, `default/demo`."""
    _, group_version, kind = type_.split(":")
    namespace, _, name = id_.rpartition("/")
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    api_version = group_version.removeprefix("core/")
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}
