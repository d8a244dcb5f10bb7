"""Webhooks that a manager serves to the API server, in HTTPS."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler

from capelin.api import (
    CONVERSION_PATH,
    VALIDATION_PATH,
    ConversionError,
    Unstructured,
    convert_json,
    problems_of_json,
)
from capelin.body_budget import BodyBudget, OverloadedError
from capelin.controller.background import Background
from capelin.controller.options import Address
from capelin.controller.serving import serve
from capelin.controller.threads import Threads
from capelin.json_text import read_json
from capelin.tls import Certificates

log = logging.getLogger(__name__)

_CONVERSIONS: Final = "apiextensions.k8s.io/v1"
_ADMISSIONS: Final = "admission.k8s.io/v1"
MAX_BODY_BYTES: Final = 16 * 2**20
"""The largest review. One with a single object has at most some MiB."""
_AT_A_TIME: Final = 4
_READ_SECONDS: Final = 10.0


def convert_review(review: Mapping[str, Any]) -> Unstructured:
    """The response to a ConversionReview: all its objects in the desired version, or one error.

    Raises:
        ValueError: It is not a ConversionReview in v1.
    """
    request = _request_of(review, _CONVERSIONS, "ConversionReview")
    response: Unstructured = {"uid": request.get("uid", "")}
    try:
        converted = list(_converted(request["objects"], request["desiredAPIVersion"]))
        response |= {"result": {"status": "Success"}, "convertedObjects": converted}
    except ConversionError as error:
        response["result"] = {"status": "Failed", "message": str(error)}
    except (KeyError, TypeError, AttributeError):
        raise ValueError("the ConversionReview lacks objects or their desired version") from None
    return {"apiVersion": _CONVERSIONS, "kind": "ConversionReview", "response": response}


def validate_review(review: Mapping[str, Any]) -> Unstructured:
    """The response to an AdmissionReview: the object is allowed, or the problems.

    Raises:
        ValueError: It is not an AdmissionReview in v1 with an object.
    """
    request = _request_of(review, _ADMISSIONS, "AdmissionReview")
    obj, old = request.get("object"), request.get("oldObject")
    if not isinstance(obj, dict) or not isinstance(old, dict | None):
        raise ValueError("the AdmissionReview lacks its object")  # noqa: TRY004 - of the request
    status = _rejection(cast("Unstructured", obj), cast("Unstructured | None", old))
    response: Unstructured = {"uid": request.get("uid", ""), "allowed": status is None}
    if status is not None:
        response["status"] = status
    return {"apiVersion": _ADMISSIONS, "kind": "AdmissionReview", "response": response}


def _request_of(review: Mapping[str, Any], api_version: str, kind: str) -> Unstructured:
    request = review.get("request")
    if review.get("apiVersion") != api_version or not isinstance(request, dict):
        raise ValueError(f"the request is not a {kind} of {api_version}")
    return cast("Unstructured", request)


def _converted(objects: list[Unstructured], api_version: str) -> Iterator[Unstructured]:
    for index, obj in enumerate(objects):
        try:
            yield convert_json(obj, api_version)
        except ConversionError as error:
            metadata: Unstructured = obj.get("metadata") or {}
            name = "/".join(filter(None, (metadata.get("namespace"), metadata.get("name"))))
            raise ConversionError(f"object {index}, {obj.get('kind')} {name}: {error}") from error


def _rejection(obj: Unstructured, old: Unstructured | None) -> Unstructured | None:
    """The status for the user, or None if the object is valid."""
    kind = obj.get("kind")
    try:
        found = problems_of_json(obj, old)
    except LookupError:
        return _status(500, "InternalError", f"the manager has no function that validates {kind}")
    except Exception as error:
        # The message of the exception may contain values of other objects.
        log.exception("The validation of a %s has failed", kind)
        reason = type(error).__name__
        return _status(500, "InternalError", f"the validation of {kind} failed with {reason}")
    if not found:
        return None
    causes = [
        {"reason": "FieldValueInvalid", "field": problem.field, "message": problem.message}
        for problem in found
    ]
    status = _status(422, "Invalid", "; ".join(map(str, found)))
    return {**status, "details": {"causes": causes}}


def _status(code: int, reason: str, message: str) -> Unstructured:
    return {"code": code, "reason": reason, "message": message}


class Webhooks:
    """Serves the conversions and validations of all kinds in this process.

    Every replica serves them, whether it leads or not. Callers need no certificate: a review reads
    and changes nothing but the objects in the request.
    """

    def __init__(self, address: Address, folder: Path) -> None:
        self._address = address
        self._folder = folder
        self._slots = asyncio.Semaphore(_AT_A_TIME)
        self._budget = BodyBudget(_AT_A_TIME * MAX_BODY_BYTES)
        self._threads = Threads("webhooks", _AT_A_TIME)
        self.bound: Address | None = None
        """The address, whose port the system may have chosen. None until `listen` returns."""

    async def listen(self, stack: AsyncExitStack, background: Background) -> None:
        """Serve until the stack closes.

        Raises:
            CertificateError: The folder has no certificate with its key.
            ListenError: The address is in use, or does not belong to this machine.
        """
        certificates = Certificates(self._folder)
        app = web.Application()
        app.router.add_post(CONVERSION_PATH, self._page(convert_review))
        app.router.add_post(VALIDATION_PATH, self._page(validate_review))
        context = certificates.context()
        stack.callback(self._threads.close)
        self.bound = await serve(stack, app, self._address, "--webhook-address", context)
        await stack.enter_async_context(background.running(certificates=certificates.follow))

    def _page(self, respond: Callable[[Any], Unstructured]) -> Handler:
        async def page(request: web.Request) -> web.Response:
            reader = _Reader(asyncio.timeout(_READ_SECONDS))
            try:
                async with reader.timeout:
                    body = await self._read(request, reader)
                # Slow callers hold no slot before their request is complete.
                async with self._slots:
                    response = await self._threads.call(lambda: respond(read_json(body)))
            except TimeoutError:
                return web.Response(status=408, text="the request did not arrive in time")
            except OverloadedError:
                return web.Response(status=503, text="other requests use all the memory")
            except (ValueError, AttributeError) as error:
                return web.Response(status=400, text=str(error))
            finally:
                self._budget.release(reader)
            return web.json_response(response)

        return page

    async def _read(self, request: web.Request, reader: "_Reader") -> bytes:
        pieces: list[bytes] = []
        size = 0
        async for piece in request.content.iter_any():
            size += len(piece)
            if size > MAX_BODY_BYTES:
                raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, size)
            self._budget.take(reader, len(piece))
            pieces.append(piece)
        self._budget.complete(reader)
        return b"".join(pieces)


class _Reader:
    """A request whose body is read."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self.timeout = timeout

    def abort(self, error: type[Exception]) -> None:
        del error
        self.timeout.reschedule(asyncio.get_running_loop().time())
