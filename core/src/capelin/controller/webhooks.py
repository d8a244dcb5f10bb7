"""Webhooks that a manager serves to the API server, in HTTPS."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, cast

from aiohttp import web

from capelin.api import CONVERSION_PATH, ConversionError, Unstructured, convert_json
from capelin.controller.options import Address
from capelin.controller.serving import serve
from capelin.json_text import read_json
from capelin.tls import Certificates

MAX_BODY_BYTES: Final = 16 * 2**20
"""The largest review. One with a single object has at most some MiB."""
_REVIEWS: Final = "apiextensions.k8s.io/v1"
_AT_A_TIME: Final = 4
_READ_SECONDS: Final = 10.0


def convert_review(review: Mapping[str, Any]) -> Unstructured:
    """The response to a ConversionReview: all its objects in the desired version, or one error.

    Raises:
        ValueError: It is not a ConversionReview in v1.
    """
    request = review.get("request")
    if review.get("apiVersion") != _REVIEWS or not isinstance(request, dict):
        raise ValueError(f"the request is not a ConversionReview of {_REVIEWS}")
    request = cast("Unstructured", request)
    response: Unstructured = {"uid": request.get("uid", "")}
    try:
        converted = list(_converted(request["objects"], request["desiredAPIVersion"]))
        response |= {"result": {"status": "Success"}, "convertedObjects": converted}
    except ConversionError as error:
        response["result"] = {"status": "Failed", "message": str(error)}
    except (KeyError, TypeError, AttributeError):
        raise ValueError("the ConversionReview lacks objects or their desired version") from None
    return {"apiVersion": _REVIEWS, "kind": "ConversionReview", "response": response}


def _converted(objects: list[Unstructured], api_version: str) -> Iterator[Unstructured]:
    for index, obj in enumerate(objects):
        try:
            yield convert_json(obj, api_version)
        except ConversionError as error:
            metadata: Unstructured = obj.get("metadata") or {}
            name = "/".join(filter(None, (metadata.get("namespace"), metadata.get("name"))))
            raise ConversionError(f"object {index}, {obj.get('kind')} {name}: {error}") from error


class Webhooks:
    """Serves the conversions of all kinds in this process.

    Every replica serves them, whether it leads or not. Callers need no certificate: a conversion
    reads and changes nothing but the objects in the request.
    """

    def __init__(self, address: Address, folder: Path) -> None:
        self._address = address
        self._folder = folder
        self._slots = asyncio.Semaphore(_AT_A_TIME)
        self.bound: Address | None = None
        """The address, whose port the system may have chosen. None until `listen` returns."""

    async def listen(self, stack: AsyncExitStack) -> None:
        """Serve until the stack closes.

        Raises:
            CertificateError: The folder has no certificate with its key.
            ListenError: The address is in use, or does not belong to this machine.
        """
        certificates = Certificates(self._folder)
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_post(CONVERSION_PATH, self._convert)
        context = certificates.context()
        self.bound = await serve(stack, app, self._address, "--webhook-address", context)
        stack.callback(asyncio.create_task(certificates.follow()).cancel)

    async def _convert(self, request: web.Request) -> web.Response:
        # The slots bound the memory for all requests together.
        async with self._slots:
            try:
                async with asyncio.timeout(_READ_SECONDS):
                    body = await request.read()
                response = await asyncio.to_thread(lambda: convert_review(read_json(body)))
            except TimeoutError:
                return web.Response(status=408, text="the request did not arrive in time")
            except (ValueError, AttributeError) as error:
                return web.Response(status=400, text=str(error))
            return web.json_response(response)
