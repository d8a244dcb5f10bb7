"""An extension that tests of the server run in its own process."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from capelin.api import Model
from capelin.runtime import Response, proceed
from capelin.runtime.extension import Call, Extension
from capelin.runtime.server import serve
from capelin.runtime.topology import Mutations, Template
from capelin.runtime.v1alpha1 import (
    BeforeClusterCreate,
    BeforeClusterDelete,
    BeforeClusterUpgrade,
    GeneratePatches,
    ValidateTopology,
)


def report(word: str) -> None:
    """Write a line for the test in one call, because several workers share the output."""
    os.write(sys.stdout.fileno(), f"{word}\n".encode())


@asynccontextmanager
async def lifespan() -> AsyncGenerator[None]:
    if "BROKEN" in os.environ:
        raise ConnectionError("no API server")
    report("open")
    yield
    report("closed")


ext = Extension("served", lifespan=lifespan)


@ext.handler(BeforeClusterCreate, name="pid")
async def pid(_: Call[BeforeClusterCreate, None]) -> Response:
    return proceed(str(os.getpid()))


@ext.handler(BeforeClusterUpgrade, name="slow")
async def slow(_: Call[BeforeClusterUpgrade, None]) -> Response:
    report("begun")
    await asyncio.sleep(0.4)
    return proceed("done")


@ext.handler(BeforeClusterDelete, name="endless", timeout_seconds=30)
async def endless(_: Call[BeforeClusterDelete, None]) -> None:
    await asyncio.Event().wait()


@ext.handler(BeforeClusterDelete, name="hung")
def hung(_: Call[BeforeClusterDelete, None]) -> None:
    threading.Event().wait()


@ext.handler(BeforeClusterDelete, name="hung-in-an-executor")
async def hung_in_an_executor(_: Call[BeforeClusterDelete, None]) -> None:
    await asyncio.to_thread(threading.Event().wait)


@ext.handler(BeforeClusterDelete, name="hung-in-a-thread-of-its-own")
async def hung_in_a_thread_of_its_own(_: Call[BeforeClusterDelete, None]) -> None:
    threading.Thread(target=threading.Event().wait).start()


@ext.handler(ValidateTopology, name="size")
def size(call: Call[ValidateTopology, None]) -> Response:
    return proceed(f"{len(call.request.items)} items")


class Variables(Model):
    motto: str


mutations = Mutations(Variables)
ext.handler(GeneratePatches, name="motto")(mutations.patches)


@mutations.on("KubeadmConfigTemplate")
def motto(template: Template[Variables]) -> None:
    owner = template.builtin.machine_deployment
    name = owner.name if owner else "none"
    template.sequence("files").append({"path": f"/etc/{name}", "content": template.variables.motto})
    template.metadata["labels"] = {"cluster": template.builtin.cluster.name}


if __name__ == "__main__":
    serve(ext)
