"""An extension to be started as a program of its own by the tests of the server."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from capelin.runtime.extension import Call, Extension
from capelin.runtime.v1alpha1 import (
    BeforeClusterCreate,
    BeforeClusterDelete,
    BeforeClusterUpgrade,
    ValidateTopology,
)
from capelin.runtime.verdicts import Proceed, proceed


@asynccontextmanager
async def lifespan() -> AsyncGenerator[None]:
    if "BROKEN" in os.environ:
        raise ConnectionError("no API server")
    print("open", flush=True)  # noqa: T201 - for the test to see
    yield
    print("closed", flush=True)  # noqa: T201


ext = Extension("served", lifespan=lifespan)


@ext.handler(BeforeClusterCreate, name="pid")
async def pid(_: Call[BeforeClusterCreate, None]) -> Proceed:
    return proceed(str(os.getpid()))


@ext.handler(BeforeClusterUpgrade, name="slow")
async def slow(_: Call[BeforeClusterUpgrade, None]) -> Proceed:
    print("begun", flush=True)  # noqa: T201
    await asyncio.sleep(0.4)
    return proceed("done")


@ext.handler(BeforeClusterDelete, name="endless", timeout_seconds=30)
async def endless(_: Call[BeforeClusterDelete, None]) -> None:
    await asyncio.Event().wait()


@ext.handler(ValidateTopology, name="size")
def size(call: Call[ValidateTopology, None]) -> Proceed:
    return proceed(f"{len(call.request.items)} items")


if __name__ == "__main__":
    ext.run(sys.argv[1:])
