"""From a request's bytes to a response's bytes: whatever a handler does becomes an answer."""

import inspect
import logging
from typing import Any, Literal, NamedTuple

import orjson
from pydantic import BaseModel, ValidationError

from capelin.runtime.catalog import AnyHook
from capelin.runtime.extension import Call, Extension, Handler
from capelin.runtime.messages import MessageError, Response, explain, read_json
from capelin.runtime.threads import MOST, AllHangError, Threads
from capelin.runtime.v1alpha1 import Discovery
from capelin.runtime.verdicts import Failure, Proceed, Retry

_log = logging.getLogger(__name__)

Outcome = Literal["success", "retry", "failure"]


class Answered(NamedTuple):
    """A response as it travels, and what it says."""

    body: bytes
    outcome: Outcome


class Endpoint:
    """One handler, ready to be called."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.at_once = handler.hook.pure and not inspect.iscoroutinefunction(handler.function)
        """Whether this process does nothing else while the handler works."""
        self._request = handler.hook.request_type()
        # What is built now is there when the first call comes, and shared by all processes.
        self._request.model_rebuild()
        self._proceed = write(handler.hook, Proceed())
        self._threads = Threads(handler.name)

    async def answer(self, body: bytes) -> Answered:
        """The response to a request."""
        try:
            request = read_json(self._request, body)
            try:
                result = await self._result(Call(request, self._settings(request)))
            except Failure as failure:
                result = failure
            return self._proceed if result is None else write(self.handler.hook, result)
        except MessageError as error:
            return self.failure(f"cannot read the request: {error}")
        except AllHangError:
            return self.failure(
                f"takes no call while {MOST} earlier ones hang; find what they wait for, or restart"
                " the extension"
            )
        except Exception as error:  # noqa: BLE001 - every error becomes an answer
            _log.exception("handler %s failed", self.handler.name)
            # The error's own words may hold a secret, or change from call to call.
            return self.failure(f"failed with {type(error).__name__}; its log says more")

    def failure(self, message: str) -> Answered:
        """An answer to tell that the handler could not answer itself."""
        return write(self.handler.hook, Failure(f"handler {self.handler.name} {message}"))

    async def _result(self, call: Call[Any, Any]) -> Any:
        function = self.handler.function
        if self.at_once or inspect.iscoroutinefunction(function):
            result = function(call)
        else:
            result = await self._threads.run(function, call)
        # A plain function may hand on what an async one returned.
        return await result if inspect.isawaitable(result) else result

    def _settings(self, request: Any) -> BaseModel | None:
        if self.handler.settings is None:
            return None
        try:
            return self.handler.settings.model_validate_strings(request.settings, extra="ignore")
        except ValidationError as error:
            raise MessageError(f"settings: {explain(error)}") from None


def write(hook: AnyHook, result: object) -> Answered:
    """What a handler returned, as the hook's response.

    Raises:
        TypeError: it is nothing that the hook can be answered with.
    """
    said: dict[str, Any]
    match result:
        case Answered():
            return result
        case Failure(message=message):
            # Half of a surrogate pair, as in the names of odd files, is nothing that JSON can say.
            message = message.encode(errors="replace").decode()
            outcome, said = "failure", {"status": "Failure", "message": message}
        case Proceed(message=message):
            outcome, said = "success", {"status": "Success", "message": message}
        case Retry(after_seconds=seconds, message=message) if hook.blocks():
            outcome = "retry"
            said = {"status": "Success", "message": message, "retryAfterSeconds": seconds}
        case Response() if isinstance(result, hook.response_type()):
            outcome, said = _outcome(result), result.dump()
        case _:
            raise TypeError(f"{hook.id.name} cannot be answered with {type(result).__name__}")
    if not said.get("message"):
        said.pop("message", None)
    if hook.blocks():
        said.setdefault("retryAfterSeconds", 0)
    head = {"apiVersion": hook.id.api_version, "kind": hook.response_type().__name__}
    return Answered(orjson.dumps(head | said), outcome)


def _outcome(response: Response) -> Outcome:
    if response.status == "Failure":
        return "failure"
    return "retry" if getattr(response, "retry_after_seconds", 0) else "success"


def endpoints(extension: Extension) -> dict[str, Endpoint]:
    """Everything that an extension answers, discovery included, by path."""
    discovered = write(Discovery, extension.discovery())
    discovery = Handler(
        name="discovery",
        hook=Discovery,
        function=lambda _: discovered,
        timeout_seconds=10,
        failure_policy="Fail",
        settings=None,
    )
    return {handler.path: Endpoint(handler) for handler in (discovery, *extension.handlers)}
