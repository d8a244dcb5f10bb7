"""The plugin's gRPC server: clear errors, partly created resources, and an end with the engine."""

# The SDK's stubs leave requests without a type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import argparse
import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio
from capelin.client import ClientError
from capelin.errors import UserError
from google.protobuf import any_pb2, struct_pb2
from pulumi.provider.experimental.property_value import PropertyValue
from pulumi.provider.experimental.provider import Provider
from pulumi.provider.experimental.server import ProviderServicer
from pulumi.runtime.proto import (
    engine_pb2,
    engine_pb2_grpc,
    provider_pb2,
    provider_pb2_grpc,
    status_pb2,
)

_MESSAGE_BYTES: Final = 400 * 2**20
_OPTIONS: Final = [("grpc.max_receive_message_length", _MESSAGE_BYTES)]

Call = Callable[[Any, Any], Awaitable[Any]]
Report = Callable[[str, str], None]
"""Shows people a message about the resource with a URN."""
Trailing = tuple[tuple[str, str | bytes], ...]


class InitFailedError(Exception):
    """A resource that exists, and whose state the engine has to keep, did not become ready."""

    def __init__(
        self, id_: str, properties: Mapping[str, PropertyValue], cause: BaseException
    ) -> None:
        super().__init__(explained(cause))
        self.id = id_
        self.properties = properties


class Servicer(ProviderServicer):
    """Answers the engine. Only defects have a Python trace in their errors."""

    async def Create(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        return await _answered(super().Create, request, context)

    async def Read(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        return await _answered(super().Read, request, context)

    async def Update(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        return await _answered(super().Update, request, context)

    async def Delete(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        return await _answered(super().Delete, request, context)


async def _answered(call: Call, request: Any, context: Any) -> Any:
    try:
        return await call(request, context)
    except asyncio.CancelledError as error:
        await context.abort(grpc.StatusCode.CANCELLED, explained(error))
    except Exception as error:
        # The SDK adds its trace to the message, and keeps the error as the context.
        cause = error.__context__
        if isinstance(cause, InitFailedError):
            await context.abort_with_status(_init_failed(cause))
        if isinstance(cause, UserError | ClientError):
            await context.abort(grpc.StatusCode.UNKNOWN, explained(cause))
        raise


def _init_failed(error: InitFailedError) -> grpc.Status:
    """An error that has the engine keep the resource in its state."""
    properties: struct_pb2.Struct = PropertyValue.marshal_map(dict(error.properties))
    detail = any_pb2.Any()
    detail.Pack(
        provider_pb2.ErrorResourceInitFailed(
            id=error.id, properties=properties, reasons=[str(error)]
        )
    )
    code = grpc.StatusCode.UNKNOWN
    status = status_pb2.Status(code=code.value[0], message=str(error), details=[detail])
    return _Status(code, str(error), (("grpc-status-details-bin", status.SerializeToString()),))


class _Status(grpc.Status):
    def __init__(
        self,
        code: grpc.StatusCode,
        details: str,
        trailing_metadata: Trailing,
    ) -> None:
        self.code = code
        self.details = details
        self.trailing_metadata = trailing_metadata


def explained(error: BaseException) -> str:
    """An error as people read it."""
    if isinstance(error, UserError):
        return "\n".join(filter(None, (error.message, error.reason, error.hint)))
    if isinstance(error, asyncio.CancelledError):
        return "interrupted: pulumi up continues with it"
    if isinstance(error, ClientError):
        return str(error)
    return f"{type(error).__name__}: {error}"


class Reports:
    """Sends messages to the engine, which shows the last one with the resource."""

    def __init__(self, engine: grpc.aio.Channel) -> None:
        self._stub: Any = engine_pb2_grpc.EngineStub(engine)
        self._last: dict[str, str] = {}
        self._tasks: set[asyncio.Future[None]] = set()

    def __call__(self, urn: str, message: str) -> None:
        """Send a message, unless it is the one that is shown already."""
        if self._last.get(urn) == message:
            return
        self._last[urn] = message
        task = asyncio.ensure_future(self._send(urn, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, urn: str, message: str) -> None:
        request = engine_pb2.LogRequest(
            severity=engine_pb2.LogSeverity.INFO, message=message, urn=urn, ephemeral=True
        )
        try:
            await self._stub.Log(request)
        except grpc.aio.AioRpcError:
            # An engine that is going shows nothing any more.
            return


def serve(arguments: Sequence[str], version: str, provider: Callable[[Report], Provider]) -> None:
    """Serve a provider until the engine ends."""
    parser = argparse.ArgumentParser(description="Pulumi provider plugin, started by Pulumi.")
    parser.add_argument("engine", help="address of the engine")
    options, _ = parser.parse_known_args(arguments)
    asyncio.run(_serve(options.engine, version, provider))


async def _serve(engine: str, version: str, provider: Callable[[Report], Provider]) -> None:
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    # The engine ends a plugin with SIGINT. Ctrl-C in a terminal is for the engine only.
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end.set)
    _watch_parent(end)
    async with grpc.aio.insecure_channel(engine) as channel:
        server = grpc.aio.server(options=_OPTIONS)
        servicer = Servicer([], version, provider(Reports(channel)), engine_address=engine)
        provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        print(port, flush=True)  # noqa: T201 - the engine reads it
        await end.wait()
        await server.stop(None)


def _watch_parent(end: asyncio.Event) -> None:
    """End when the engine, or the language host that started the plugin for it, was killed."""
    descriptor = os.pidfd_open(os.getppid())
    asyncio.get_running_loop().add_reader(descriptor, partial(_ended, descriptor, end))


def _ended(descriptor: int, end: asyncio.Event) -> None:
    asyncio.get_running_loop().remove_reader(descriptor)
    os.close(descriptor)
    end.set()
