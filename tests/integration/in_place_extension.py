"""An extension that updates the files of bootstrap configs in place, and nothing else."""

from typing import Any

import orjson
from capelin.api import Unstructured
from capelin.runtime import Call, Extension
from capelin.runtime.server import serve
from capelin.runtime.v1alpha1 import (
    CanUpdateMachineSet,
    CanUpdateMachineSetResponse,
    Patch,
    UpdateMachine,
)

ext = Extension("in-place")


@ext.handler(CanUpdateMachineSet, name="can-update-machine-set")
def can_update(call: Call[CanUpdateMachineSet, None]) -> CanUpdateMachineSetResponse:
    """Files can be written at any time."""
    current = call.request.current.bootstrap_config_template
    desired = call.request.desired.bootstrap_config_template
    if current is None or desired is None or files(current) == files(desired):
        return CanUpdateMachineSetResponse(status="Success")
    operation = {"op": "add", "path": "/spec/template/spec/files", "value": files(desired)}
    patch = Patch(patch_type="JSONPatch", patch=orjson.dumps([operation]))
    return CanUpdateMachineSetResponse(status="Success", bootstrap_config_template_patch=patch)


def files(template: Unstructured) -> list[Any]:
    return template["spec"]["template"]["spec"].get("files", [])


@ext.handler(UpdateMachine, name="update-machine")
def update(_: Call[UpdateMachine, None]) -> None:
    """The update ends at once."""


if __name__ == "__main__":
    serve(ext)
