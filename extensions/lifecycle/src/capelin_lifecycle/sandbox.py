"""Evaluates expressions and parses manifests of policies in processes with limits of the kernel.

A few worker processes are shared by all policies, so that none can keep them from the others.
The Clusters of a namespace have one worker at a time, and namespaces take turns. A policy that
overruns its budget for them is not evaluated for them again for a while: the wait doubles each
time, and ends when the policy changes.
"""

import asyncio
import atexit
import os
import select
import signal
import subprocess
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, cast

import orjson

from capelin_lifecycle.expressions import ExpressionError
from capelin_lifecycle.sandbox_worker import RESULT, TASK

MIB: Final = 2**20
_START_SECONDS: Final = 60.0
_WALL_SECONDS: Final = 10.0
"""How long a task may take beside its CPU time, on a machine that has none left for it."""
_FIRST_PENALTY: Final = 10.0
_LAST_PENALTY: Final = 600.0
_MOST_PENALTIES: Final = 4096
_KEPT_VARIABLES: Final = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
"""What the interpreter may need. Nothing else of the environment is a worker's business."""


class ManifestError(ValueError):
    """A text holds no manifests, or too many."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that a task may use."""

    cpu_seconds: float = 0.1
    memory: int = 50 * MIB

    def overrun(self) -> str:
        """What an overrun of CPU time says."""
        return f"it takes more than {self.cpu_seconds * 1000:.0f} ms of CPU time"

    def overflow(self) -> str:
        """What an overrun of memory says."""
        return f"it needs more than {self.memory // MIB} MiB of memory"


@dataclass(frozen=True, slots=True)
class Owner:
    """Which policy a task is for, and the namespace of the Cluster that it is about."""

    policy: str
    """The policy's uid."""
    generation: int
    namespace: str


@dataclass(frozen=True, slots=True)
class Question:
    """An expression to evaluate."""

    text: str
    variables: tuple[str, ...]
    boolean: bool = False


@dataclass(slots=True)
class _Task:
    owner: Owner
    content: bytes
    budget: Budget
    future: Future[bytes]


@dataclass(slots=True)
class _Penalty:
    message: str
    until: float
    seconds: float


class OverrunError(Exception):
    """A task has used more than its budget."""


class Sandbox:
    """Worker processes and the tasks that wait for them."""

    def __init__(
        self,
        workers: int = 2,
        budget: Budget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = Lock()
        self._budget = budget or Budget()
        self._clock = clock
        self._idle = [_Worker() for _ in range(workers)]
        self._workers = tuple(self._idle)
        self._threads: ThreadPoolExecutor | None = None
        self._waiting: OrderedDict[str, deque[_Task]] = OrderedDict()
        self._busy: set[str] = set()
        self._penalties: OrderedDict[Owner, _Penalty] = OrderedDict()
        atexit.register(self.close)

    def configure(self, budget: Budget) -> None:
        """Set the budget of a policy's expressions."""
        self._budget = budget

    def start(self) -> None:
        """Start the workers before the first task needs them."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            self._executor().submit(self._make_idle, worker)

    def close(self) -> None:
        """End the workers. They start again with the next task."""
        for worker in self._workers:
            worker.stop()

    async def evaluate(
        self, owner: Owner, questions: Sequence[Question], variables: Mapping[str, Any]
    ) -> list[Any | ExpressionError]:
        """The value of each expression, or why it has none. All together have one budget."""
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

    async def manifests(self, owner: Owner, text: str) -> list[Any]:
        """The documents of a YAML text on which all parsers agree.

        Raises:
            ManifestError: it is not one, or parsing takes too much.
        """
        # A Secret or ConfigMap has at most a MiB. Parsers take a second for it, and some memory.
        budget = Budget(0.2 + 4 * len(text) / MIB, 50 * MIB + 200 * len(text))
        try:
            result = await self._result(owner, orjson.dumps({"manifests": text}), budget)
        except OverrunError as error:
            raise ManifestError(str(error)) from None
        if result["manifests"] is None:
            raise ManifestError("it is not YAML, or has anchors, aliases, tags or duplicate keys")
        return result["manifests"]

    async def _result(self, owner: Owner, content: bytes, budget: Budget) -> dict[str, Any]:
        self._check_penalty(owner)
        task = _Task(owner, content, budget, Future())
        with self._lock:
            self._waiting.setdefault(owner.namespace, deque()).append(task)
        self._dispatch()
        try:
            return cast("dict[str, Any]", orjson.loads(await asyncio.wrap_future(task.future)))
        except OverrunError as error:
            self._penalize(owner, str(error))
            raise

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

    def _dispatch(self) -> None:
        """Give idle workers the tasks of namespaces that have none, in turn."""
        with self._lock:
            ready = [name for name in self._waiting if name not in self._busy]
            for namespace in ready[: len(self._idle)]:
                tasks = self._waiting.pop(namespace)
                task = tasks.popleft()
                if tasks:
                    # Behind the others.
                    self._waiting[namespace] = tasks
                self._busy.add(namespace)
                self._executor().submit(self._run, self._idle.pop(), task)

    def _run(self, worker: "_Worker", task: _Task) -> None:
        try:
            if task.future.set_running_or_notify_cancel():
                # Another of its policy's tasks may have overrun while this one waited.
                self._check_penalty(task.owner)
                task.future.set_result(worker.run(task.content, task.budget))
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            task.future.set_exception(error)
        finally:
            with self._lock:
                self._busy.discard(task.owner.namespace)
            self._make_idle(worker)

    def _make_idle(self, worker: "_Worker") -> None:
        try:
            worker.start()
        except OSError:
            # The next task says so.
            worker.stop()
        with self._lock:
            self._idle.append(worker)
        self._dispatch()

    def _executor(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(len(self._workers), "sandbox")
        return self._threads


class _Worker:
    """A worker process, as the thread that uses it sees it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process if none runs."""
        if self._process is not None and self._process.poll() is None:
            return
        self.stop()
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "capelin_lifecycle.sandbox_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
        self._read(self._process, time.monotonic() + _START_SECONDS)

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.wait()

    def run(self, content: bytes, budget: Budget) -> bytes:
        """Do a task.

        Raises:
            OverrunError: it uses more than its budget.
        """
        self.start()
        process = self._process
        if process is None or process.stdin is None:
            raise OSError("the worker process has ended")
        try:
            process.stdin.write(TASK.pack(len(content), budget.cpu_seconds, budget.memory))
            process.stdin.write(content)
            process.stdin.flush()
            result = self._read(process, time.monotonic() + budget.cpu_seconds + _WALL_SECONDS)
        except (EOFError, BrokenPipeError):
            code = process.wait()
            self.stop()
            if code == -signal.SIGPROF:
                raise OverrunError(budget.overrun()) from None
            # Libraries in C++ end the process if there is no memory.
            raise OverrunError(budget.overflow()) from None
        except TimeoutError:
            self.stop()
            raise OverrunError(budget.overrun()) from None
        if not result:
            raise OverrunError(budget.overflow())
        return result

    def _read(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        (length,) = RESULT.unpack(_read_exactly(process, RESULT.size, deadline))
        return _read_exactly(process, length, deadline)


def _read_exactly(process: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
    if process.stdout is None:
        raise EOFError
    descriptor, data = process.stdout.fileno(), bytearray()
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    while len(data) < size:
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
        part = os.read(descriptor, min(size - len(data), MIB))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


SANDBOX: Final = Sandbox()
"""Of the process: expressions of all policies share it."""
