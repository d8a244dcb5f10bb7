"""For tests of extensions: sample requests, and calls of handlers without a server.

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
    """A request of a hook as JSON, by default for a sample cluster."""
    return request_for(hook, scene or sample_cluster(), settings)


async def response_of(
    extension: Extension,
    name: str,
    request: Unstructured | None = None,
    *,
    settings: Mapping[str, str] | None = None,
) -> Any:
    """The response of a handler, in its hook's type, even if it is a failure.

    This parses the request and serializes the response like the server.

    Raises:
        KeyError: The extension has no such handler.
        InvalidExtensionError: Cluster API would reject the extension.
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
    """The patches of a handler for some variables, by template.

    The kind and the user of a template form its key. Unchanged templates do not appear.

    Raises:
        AssertionError: The handler failed, with its message.
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
