"""Commands in a container, through the engine's API."""

import asyncio

from capelin_machine_pool.bootstrap import CommandResult, Transport, TransportError
from capelin_machine_pool.bootstrap.transport import MAX_OUTPUT_BYTES
from capelin_machine_pool.containers.engine import Engine, EngineError


class ContainerTransport(Transport):
    """Runs commands in one container."""

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine = engine
        self._container = container

    async def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        timeout_seconds: float = 30,
        max_output: int = MAX_OUTPUT_BYTES,
    ) -> CommandResult:
        shell = ["/bin/sh", "-c", command]
        try:
            async with asyncio.timeout(timeout_seconds):
                end = await self._engine.execute(
                    self._container, shell, stdin, max_output=max_output
                )
        except TimeoutError:
            raise TransportError("a command in the container does not end in time") from None
        except EngineError as error:
            raise TransportError(str(error)) from error
        return CommandResult(end.exit_code, end.output, end.errors)
