"""For tests of extensions: made-up requests, and handlers answered without a server.

answer = await response_of(ext, "storage-is-healthy")
assert answer.retry_after_seconds == 30

assert await patches_of(ext, "motto-v1", {"motto": "swim"}) == {
    "KubeadmConfigTemplate of MachineDeployment": [{"op": "add", ...}]
}
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from capelin.api import Unstructured
from capelin.runtime import AnyHook, Extension
from capelin.runtime.dispatch import handler_runners
from capelin.runtime.fixtures import ClusterFixture, request_for, sample_cluster
from capelin.runtime.messages import read
from capelin.runtime.v1alpha1 import (
    GeneratePatches,
    GeneratePatchesRequest,
    GeneratePatchesResponse,
)


def fake_request(
    hook: AnyHook, scene: ClusterFixture | None = None, settings: Mapping[str, str] | None = None
) -> Unstructured:
    """A request of a hook, as JSON: about a made-up cluster if nothing else is said."""
    return request_for(hook, scene or sample_cluster(), settings)


async def response_of(
    extension: Extension,
    name: str,
    request: Unstructured | None = None,
    *,
    settings: Mapping[str, str] | None = None,
) -> Any:
    """What a handler answers, as its hook's response type; its failures too.

    The request goes through the same reading, and the answer through the same writing, as on the
    wire.

    Raises:
        KeyError: there is no such handler.
        InvalidExtensionError: Cluster API would not take the extension.
    """
    extension.check()
    handler = {handler.name: handler for handler in extension.handlers}[name]
    asked = request or fake_request(handler.hook, settings=settings)
    answered = await handler_runners(extension)[handler.path].respond(orjson.dumps(asked))
    return read(handler.hook.response_type(), orjson.loads(answered.body))


async def patches_of(
    extension: Extension,
    name: str,
    variables: Mapping[str, Any] | None = None,
    *,
    scene: ClusterFixture | None = None,
) -> dict[str, Any]:
    """The patches that a handler makes with some variables, by template.

    A template is named by its kind and by what uses it; those that stay as they are do not appear.

    Raises:
        AssertionError: the handler fails, with its message.
    """
    scene = scene or sample_cluster()
    scene = replace(scene, variables={**scene.variables, **(variables or {})})
    request = fake_request(GeneratePatches, scene)
    answer: GeneratePatchesResponse = await response_of(extension, name, request)
    if answer.status != "Success":
        raise AssertionError(f"{name} fails: {answer.message}")
    patches = {item.uid: orjson.loads(item.patch) for item in answer.items}
    return {
        f"{item.object['kind']} of {item.holder_reference.kind}": patches[item.uid]
        for item in read(GeneratePatchesRequest, request).items
        if item.uid in patches
    }
