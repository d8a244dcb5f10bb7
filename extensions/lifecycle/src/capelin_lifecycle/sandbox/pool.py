"""Compiles and evaluates expressions, and parses manifests, in processes with limits of the kernel.

All policies share a few worker processes, and none can keep them from the others.
The Clusters of a namespace have one worker at a time, and namespaces take turns. A namespace whose
task ends a worker waits until its replacement has started. A policy that overruns its budget for
them is not evaluated for them again for a while: the wait doubles each time, and ends when the
policy changes.
"""

import asyncio
import atexit
import os
import signal
import socket
import subprocess
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from capelin_lifecycle.sandbox.expressions import ExpressionError
from capelin_lifecycle.sandbox.worker import RESULT, TASK

MIB: Final = 2**20
_START_SECONDS: Final = 60.0
_WALL_SECONDS: Final = 10.0
"""How long a task may wait for its CPU time on a machine that has none left."""
_FIRST_PENALTY: Final = 10.0
_LAST_PENALTY: Final = 600.0
_MOST_PENALTIES: Final = 4096
_KEPT_VARIABLES: Final = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
"""The variables that the interpreter may need. Workers get no others."""


class ManifestError(ValueError):
    """A text contains no valid manifests, or too many."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that a task may use."""

    cpu_seconds: float = 0.1
    memory: int = 50 * MIB

    def overrun(self) -> str:
        return f"it takes more than {self.cpu_seconds * 1000:.0f} ms of CPU time"

    def overflow(self) -> str:
        return f"it needs more than {self.memory // MIB} MiB of memory"


_COMPILING: Final = Budget(cpu_seconds=2.0)


@dataclass(frozen=True, slots=True)
class Owner:
    """Which policy a task is for, and the namespace of the Cluster that it is about."""

    policy: str
    """The policy's uid."""
    generation: int
    namespace: str


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    variables: tuple[str, ...]
    boolean: bool = False


@dataclass(slots=True)
class _Task:
    owner: Owner
    content: bytes
    budget: Budget
    result: asyncio.Future[bytes]


@dataclass(slots=True)
class _Penalty:
    message: str
    until: float
    seconds: float


class OverrunError(Exception):
    """A task has used more than its budget."""


class OverloadError(ExpressionError):
    """The machine has ended a worker, or kept it from running: no policy is to blame."""

    def __init__(self) -> None:
        super().__init__("the extension lacks CPU time or memory to evaluate it, trying again")


class Sandbox:
    """Worker processes and the tasks that wait for them. For one event loop at a time."""

    def __init__(
        self,
        workers: int = 2,
        budget: Budget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers = tuple(_Worker() for _ in range(workers))
        self._budget = budget or Budget()
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: deque[_Worker] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._waiting: OrderedDict[str, deque[_Task]] = OrderedDict()
        self._busy: set[str] = set()
        self._penalties: OrderedDict[Owner, _Penalty] = OrderedDict()
        atexit.register(self.close)

    @property
    def processes(self) -> tuple[int, ...]:
        """Ids of the processes that run."""
        return tuple(filter(None, (worker.process_id for worker in self._workers)))

    def configure(self, budget: Budget) -> None:
        self._budget = budget

    def start(self) -> None:
        """Start the processes, so that the first task does not wait for them."""
        for worker in self._workers:
            worker.launch()

    def close(self) -> None:
        """End the processes and their tasks. Processes start again with the next task."""
        if self._loop is not None and not self._loop.is_closed():
            for running in self._running:
                running.cancel()
        for worker in self._workers:
            worker.stop()

    async def evaluate(
        self, owner: Owner, questions: Sequence[Question], variables: Mapping[str, Any]
    ) -> list[Any | ExpressionError]:
        """The value of each expression, or why it has none. All together have one budget.

        Raises:
            OverloadError: the machine cannot evaluate them now.
        """
        if not questions:
            return []
        asked = [(one.text, one.variables, one.boolean) for one in questions]
        content = orjson.dumps({"questions": asked, "variables": variables})
        try:
            result = await self._result(owner, content, self._budget)
        except OverrunError as error:
            return [ExpressionError(str(error)) for _ in questions]
        return [
            answer["value"] if "value" in answer else ExpressionError(answer["problem"])
            for answer in result["answers"]
        ]

    async def value(self, owner: Owner, question: Question, variables: Mapping[str, Any]) -> Any:
        """The value of an expression.

        Raises:
            ExpressionError: it has none.
        """
        (answer,) = await self.evaluate(owner, [question], variables)
        if isinstance(answer, ExpressionError):
            raise answer
        return answer

    async def problems(self, owner: Owner, expressions: Mapping[str, Question]) -> list[str]:
        """Why expressions, by their fields, cannot be compiled.

        Raises:
            OverloadError: the machine cannot compile them now.
        """
        content = orjson.dumps({"expressions": expressions})
        try:
            result = await self._result(owner, content, _COMPILING)
        except OverrunError as error:
            return [f"the expressions cannot be compiled: {error}"]
        return [f"{field}: {problem}" for field, problem in result["problems"].items()]

    async def manifests(self, owner: Owner, text: str) -> list[Any]:
        """The documents of a YAML text on which all parsers agree.

        Raises:
            ManifestError: it is not one, or parsing takes too much.
        """
        # A Secret or ConfigMap has at most a MiB. Parsers take a second for it, and some memory.
        budget = Budget(0.2 + 4 * len(text) / MIB, 50 * MIB + 200 * len(text))
        try:
            result = await self._result(owner, orjson.dumps({"manifests": text}), budget)
        except (OverrunError, OverloadError) as error:
            raise ManifestError(str(error)) from None
        if result["manifests"] is None:
            raise ManifestError(
                "it is not YAML, or has anchors, aliases, tags, duplicate keys or values that JSON"
                " does not have"
            )
        return result["manifests"]

    async def _result(self, owner: Owner, content: bytes, budget: Budget) -> dict[str, Any]:
        self._check_penalty(owner)
        loop = asyncio.get_running_loop()
        self._attach(loop)
        task = _Task(owner, content, budget, loop.create_future())
        self._waiting.setdefault(owner.namespace, deque()).append(task)
        self._dispatch(loop)
        return cast("dict[str, Any]", orjson.loads(await task.result))

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            if self._loop is not None:
                self.close()
            self._loop, self._idle = loop, deque(self._workers)
            self._running, self._waiting, self._busy = set(), OrderedDict(), set()

    def _check_penalty(self, owner: Owner) -> None:
        penalty = self._penalties.get(owner)
        if penalty is not None and self._clock() < penalty.until:
            raise OverrunError(penalty.message)

    def _penalize(self, owner: Owner, message: str) -> None:
        before = self._penalties.pop(owner, None)
        seconds = _FIRST_PENALTY if before is None else min(_LAST_PENALTY, before.seconds * 2)
        self._penalties[owner] = _Penalty(message, self._clock() + seconds, seconds)
        if len(self._penalties) > _MOST_PENALTIES:
            self._penalties.popitem(last=False)

    def _dispatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give idle workers the tasks of namespaces that have none, in turn."""
        ready = [name for name in self._waiting if name not in self._busy]
        for namespace in ready[: len(self._idle)]:
            tasks = self._waiting.pop(namespace)
            task = tasks.popleft()
            if tasks:
                # Behind the others.
                self._waiting[namespace] = tasks
            self._busy.add(namespace)
            running = loop.create_task(self._run(self._idle.popleft(), task))
            self._running.add(running)
            running.add_done_callback(self._running.discard)

    async def _run(self, worker: "_Worker", task: _Task) -> None:
        """Run a task, and free the worker when it is ready for the next one."""
        try:
            await self._finish(worker, task)
            with suppress(EOFError, OSError):
                await worker.prepare()
        finally:
            self._busy.discard(task.owner.namespace)
            self._idle.append(worker)
            self._dispatch(asyncio.get_running_loop())

    async def _finish(self, worker: "_Worker", task: _Task) -> None:
        """Run a task to its end, even if the hook that waits for it has no more time."""
        try:
            if not task.result.done():
                # Another task of the same owner may have overrun while this one waited.
                self._check_penalty(task.owner)
                try:
                    result = await worker.run(task.content, task.budget)
                except OverloadError:
                    result = await worker.run(task.content, task.budget)
                if not task.result.done():
                    task.result.set_result(result)
        except asyncio.CancelledError:
            if not task.result.done():
                task.result.set_exception(OverloadError())
            raise
        except Exception as error:  # noqa: BLE001 - the caller raises it
            if isinstance(error, OverrunError):
                self._penalize(task.owner, str(error))
            if not task.result.done():
                task.result.set_exception(error)


class _Worker:
    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that may wait for the socket."""
        self._is_ready = False

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    def launch(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        own, its = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "capelin_lifecycle.sandbox.worker"],
                stdin=its.fileno(),
                stdout=its.fileno(),
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        finally:
            its.close()
        own.settimeout(0)
        self._socket = own

    def stop(self) -> None:
        process, self._process = self._process, None
        if self._socket is not None:
            if self._loop is not None and not self._loop.is_closed():
                # Otherwise the loop never reads from the next socket with the same number.
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            self._socket.close()
        self._socket, self._loop, self._is_ready = None, None, False
        if process is not None:
            process.kill()
            process.wait()

    async def prepare(self) -> None:
        """Wait until the process can run a task."""
        self.launch()
        self._loop = asyncio.get_running_loop()
        if not self._is_ready:
            async with asyncio.timeout(_START_SECONDS):
                await self._receive()
            self._is_ready = True

    async def run(self, content: bytes, budget: Budget) -> bytes:
        """Run a task.

        Raises:
            OverrunError: it uses more than its budget.
            OverloadError: the machine has ended the process, or given it no time.
        """
        try:
            await self.prepare()
            async with asyncio.timeout(budget.cpu_seconds + _WALL_SECONDS):
                header = TASK.pack(len(content), budget.cpu_seconds, budget.memory)
                await asyncio.get_running_loop().sock_sendall(self._end, header + content)
                result, is_last = await self._receive()
        except (EOFError, ConnectionError, TimeoutError) as error:
            is_late = isinstance(error, TimeoutError)
            problem = OverloadError() if is_late else self._reason_of_end(budget)
            self.stop()
            # The replacement is ready sooner for the next task.
            self.launch()
            raise problem from None
        except BaseException:
            self.stop()
            raise
        if is_last:
            # The next task must not meet a process that is about to end.
            self.stop()
            self.launch()
        if not result:
            raise OverrunError(budget.overflow())
        return result

    def _reason_of_end(self, budget: Budget) -> Exception:
        code = None if self._process is None else self._process.wait()
        if code == -signal.SIGPROF:
            return OverrunError(budget.overrun())
        if not self._is_ready or code == -signal.SIGKILL:
            # No task causes this. The kernel does if the machine lacks memory.
            return OverloadError()
        # Libraries in C++ end the process if they get no memory.
        return OverrunError(budget.overflow())

    @property
    def _end(self) -> socket.socket:
        if self._socket is None:
            raise EOFError
        return self._socket

    async def _receive(self) -> tuple[bytes, bool]:
        """A result, and whether the process ends after it."""
        length, is_last = RESULT.unpack(await self._receive_exactly(RESULT.size))
        return await self._receive_exactly(length), is_last

    async def _receive_exactly(self, size: int) -> bytes:
        loop, data = asyncio.get_running_loop(), bytearray()
        while len(data) < size:
            part = await loop.sock_recv(self._end, size - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


SANDBOX: Final = Sandbox()
"""Of the process: expressions of all policies share it."""
