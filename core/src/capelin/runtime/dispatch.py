"""Runs a handler: from the bytes of a request to the bytes of a response.

Whatever a handler does becomes a response. Plain functions that may wait run in threads. Each
handler has its own, so that hanging calls hold up no other handler. A thread cannot be stopped: it
stays behind with its call, and does not keep the process from ending.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Literal, NamedTuple

import orjson
from pydantic import BaseModel, ValidationError

from capelin.collection import large_objects
from capelin.runtime.catalog import AnyHook
from capelin.runtime.extension import Call, Extension, Handler
from capelin.runtime.messages import MessageError, Response, RetryResponse, explain, read_json
from capelin.runtime.results import Failure
from capelin.runtime.v1alpha1 import Discovery

_log = logging.getLogger(__name__)

MAX_THREADS = 32
"""The number of concurrent calls of one handler. Further calls wait."""

Outcome = Literal["success", "retry", "failure"]

_Result = tuple[Any, BaseException | None]


class EncodedResponse(NamedTuple):
    """A response in wire format, and its outcome."""

    body: bytes
    outcome: Outcome
    message: str = ""
    retry_after_seconds: int = 0


class HandlerRunner:
    def __init__(self, handler: Handler, known_settings: Collection[str] | None = None) -> None:
        """Prepare the handler.

        Args:
            handler: The handler to run.
            known_settings: All settings that a request may have, in addition to its own: the
                settings of an ExtensionConfig go to all of its handlers.
        """
        self.handler = handler
        self._known_settings = {*settings_of(handler), *(known_settings or ())}
        self.blocks_loop = handler.hook.pure and not inspect.iscoroutinefunction(handler.function)
        """Whether the handler blocks the whole process while it runs."""
        self._request = handler.hook.request_type()
        # Built now, so that the first call does not have to wait.
        self._request.model_rebuild()
        self._proceed = encode(handler.hook, Response(status="Success"))
        self._threads = Threads(handler.name)

    async def respond(self, body: bytes) -> EncodedResponse:
        try:
            with large_objects(len(body)):
                started = self._start(body)
            if isinstance(started, EncodedResponse):
                return started
            request, result = started
            try:
                # A plain function may return the awaitable of an async one.
                while inspect.isawaitable(result):
                    result = await result
            except Failure as failure:
                result = failure
            return self._encode(request, result)
        except MessageError as error:
            return self._log_failure(f"cannot read the request: {error}")
        except AllThreadsHangError:
            return self._log_failure(
                f"accepts no call while {MAX_THREADS} earlier ones hang. Find the reason,"
                " or restart the extension"
            )
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            _log.exception("handler %s failed", self.handler.name)
            # The text of the error may contain a secret, or change from call to call.
            return self.failure(f"failed with {type(error).__name__} (see its log)")

    def failure(self, message: str) -> EncodedResponse:
        """A failure response for a call to which the handler itself could not respond."""
        return encode(self.handler.hook, Failure(f"handler {self.handler.name} {message}"))

    def _encode(self, request: object, result: object) -> EncodedResponse:
        if result is None:
            return self._proceed
        response = encode(self.handler.hook, result)
        if response.outcome != "success":
            _log_outcome(self.handler, request, response)
        return response

    def _log_failure(self, message: str) -> EncodedResponse:
        _log.warning("handler %s %s", self.handler.name, message)
        return self.failure(message)

    def _start(self, body: bytes) -> EncodedResponse | tuple[Any, Awaitable[Any]]:
        """Read the request and call the function. It responds at once unless it waits."""
        request = read_json(self._request, body)
        call: Call[Any, Any] = Call(request, self._settings(request))
        function = self.handler.function
        try:
            if self.blocks_loop or inspect.iscoroutinefunction(function):
                result = function(call)
            else:
                result = self._threads.run(function, call)
        except Failure as failure:
            result = failure
        return (request, result) if inspect.isawaitable(result) else self._encode(request, result)

    def _settings(self, request: Any) -> BaseModel | None:
        if self.handler.settings is None:
            return None
        if unknown := request.settings.keys() - self._known_settings:
            known = ", ".join(sorted(self._known_settings)) or "none"
            raise MessageError(f"settings: unknown {', '.join(sorted(unknown))} (known: {known})")
        try:
            return self.handler.settings.model_validate_strings(request.settings, extra="ignore")
        except ValidationError as error:
            raise MessageError(f"settings: {explain(error)}") from None


def settings_of(handler: Handler) -> set[str]:
    """The names of a handler's settings, as requests may contain them."""
    names: set[str] = set()
    if handler.settings is not None:
        by_name = handler.settings.model_config.get("populate_by_name", False)
        for name, field in handler.settings.model_fields.items():
            aliases = [a for a in (field.validation_alias, field.alias) if isinstance(a, str)]
            names.update(aliases, [name] if by_name or not aliases else [])
    return names


def _log_outcome(handler: Handler, request: Any, response: EncodedResponse) -> None:
    """Log the handler that blocked or failed a call. Its message is for people."""
    metadata = getattr(request, "cluster_json", {}).get("metadata", {})
    target = f"Cluster {metadata.get('namespace', '')}/{metadata.get('name', '')}"
    hook = handler.hook.id.name
    where = f"{hook} of {target}" if metadata else hook
    if response.outcome == "retry":
        seconds, message = response.retry_after_seconds, response.message
        _log.info("handler %s blocks %s for %s s: %s", handler.name, where, seconds, message)
    else:
        _log.warning("handler %s failed %s: %s", handler.name, where, response.message)


def encode(hook: AnyHook, result: object) -> EncodedResponse:
    """Encode the result of a handler as the hook's response.

    Raises:
        TypeError: The hook has no such response.
    """
    fields: dict[str, Any]
    outcome: Outcome
    if isinstance(result, EncodedResponse):
        return result
    if isinstance(result, Failure):
        # JSON cannot contain half of a surrogate pair, which occurs in unusual file names.
        message = result.message.encode(errors="replace").decode()
        outcome, fields = "failure", {"status": "Failure", "message": message}
    elif type(result) is Response:
        outcome, fields = _outcome(result), {"status": result.status, "message": result.message}
    elif isinstance(result, Response) and (
        isinstance(result, hook.response_type())
        or (type(result) is RetryResponse and hook.blocks())
    ):
        outcome, fields = _outcome(result), result.dump()
    else:
        raise TypeError(f"{type(result).__name__} is not a response of {hook.id.name}")
    if not fields.get("message"):
        fields.pop("message", None)
    if hook.blocks():
        fields.setdefault("retryAfterSeconds", 0)
    head = {"apiVersion": hook.id.api_version, "kind": hook.response_type().__name__}
    return EncodedResponse(
        orjson.dumps(head | fields),
        outcome,
        fields.get("message", ""),
        fields.get("retryAfterSeconds", 0),
    )


def _outcome(response: Response) -> Outcome:
    if response.status == "Failure":
        return "failure"
    return "retry" if getattr(response, "retry_after_seconds", 0) else "success"


def handler_runners(extension: Extension) -> dict[str, HandlerRunner]:
    """Runners for all handlers of an extension, discovery included, by path."""
    discovery = Handler(
        name="discovery",
        hook=Discovery,
        function=_Discovery(extension),
        timeout_seconds=10,
        failure_policy="Fail",
        settings=None,
    )
    known = {name for handler in extension.handlers for name in settings_of(handler)}
    handlers = (discovery, *extension.handlers)
    return {handler.path: HandlerRunner(handler, known) for handler in handlers}


class _Discovery:
    """Responds to discovery. Encodes the response again only if the reported handlers change."""

    def __init__(self, extension: Extension) -> None:
        self._extension = extension
        self._reported: tuple[Handler, ...] | None = None
        self._response = EncodedResponse(b"", "failure")

    def __call__(self, _: Call[Any, Any]) -> EncodedResponse:
        reported = self._extension.discovered
        if reported != self._reported:
            self._response = encode(Discovery, self._extension.discovery())
            self._reported = reported
        return self._response


class AllThreadsHangError(Exception):
    """Every thread of a handler runs a call whose caller has stopped waiting."""


class Threads:
    """The threads of one handler, at most as many as it has needed at the same time."""

    def __init__(self, handler: str) -> None:
        self._name = f"handler {handler}"
        self._count = 0
        self._queue: SimpleQueue[_Work] = SimpleQueue()
        self._unfinished: set[_Work] = set()
        self._lock = Lock()

    async def run(self, function: Callable[[Any], Any], call: object) -> Any:
        """Run a function in a thread and return its result.

        Raises:
            AllThreadsHangError: All threads hang, and the function might never start.
        """
        work = _Work(function, call)
        with self._lock:
            busy = len(self._unfinished)
            hanging = busy >= MAX_THREADS and sum(work.hangs() for work in self._unfinished)
            if hanging >= MAX_THREADS:
                raise AllThreadsHangError
        if busy >= self._count < MAX_THREADS:
            # Unlike the threads of an executor, a daemon thread does not keep the process alive.
            Thread(target=self._serve, name=self._name, daemon=True).start()
            self._count += 1
        with self._lock:
            self._unfinished.add(work)
        self._queue.put(work)
        await work.done
        result, error = work.take_result()
        if error is None:
            return result
        try:
            raise error
        finally:
            # The error refers to this frame. If this frame referred to the error, both would stay
            # in memory until garbage collection, together with the request.
            del error

    def _serve(self) -> None:
        while True:
            self._finish(self._queue.get())

    def _finish(self, work: "_Work") -> None:
        work.run()
        # First, because the next call may come as soon as this one has its response.
        with self._lock:
            self._unfinished.discard(work)
        work.notify()


class _Work:
    """One call in a thread."""

    __slots__ = ("_call", "_context", "_function", "_loop", "_result", "_started", "done")

    def __init__(self, function: Callable[[Any], Any], call: object) -> None:
        self._function, self._call = function, call
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._started = False
        self._result: _Result = (None, None)
        self.done: asyncio.Future[None] = self._loop.create_future()

    def hangs(self) -> bool:
        """Whether a thread still runs it after its caller has stopped waiting."""
        return self._started and self.done.cancelled()

    def run(self) -> None:
        """Call the function, if its caller still waits."""
        if self.done.cancelled():
            return
        self._started = True
        try:
            self._result = self._context.run(self._function, self._call), None
        except BaseException as error:  # noqa: BLE001 - raised again for the caller
            self._result = None, error

    def notify(self) -> None:
        """Wake the caller."""
        # The loop may already be closed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._notify)

    def take_result(self) -> _Result:
        """The result, once: an error refers to its frames, and they refer to this."""
        result, self._result = self._result, (None, None)
        return result

    def _notify(self) -> None:
        if self.done.done():
            self._result = (None, None)
        else:
            self.done.set_result(None)
