"""An extension with a handler for every hook, to run as a process."""

from typing import Any

from capelin.api import Model
from capelin.runtime import Call, Extension, Response, proceed, retry_after
from capelin.runtime.server import serve
from capelin.runtime.topology import Mutations, Template
from capelin.runtime.v1alpha1 import (
    CLUSTER_API,
    BeforeClusterUpgrade,
    DiscoverVariables,
    GeneratePatches,
    GenerateUpgradePlan,
    GenerateUpgradePlanResponse,
    UpgradeStep,
)

ext = Extension("complete")


class Variables(Model):
    """Variables of the ClusterClass."""

    motto: str = "swim"


mutations = Mutations(Variables)
ext.handler(GeneratePatches, name="motto-v1")(mutations.patches)
ext.handler(DiscoverVariables, name="variables-v1")(mutations.described)


@mutations.on("KubeadmConfigTemplate")
def motto(template: Template[Variables]) -> None:
    """The motto of the day."""
    files = template.sequence("files")
    files.append({"path": "/etc/motd", "content": template.variables.motto})


@ext.handler(GenerateUpgradePlan)
def plan(call: Call[GenerateUpgradePlan, None]) -> GenerateUpgradePlanResponse:
    """Upgrade in one step."""
    start = call.request.from_control_plane_kubernetes_version
    target = call.request.to_kubernetes_version
    steps = [UpgradeStep(version=target)] if start != target else []
    return GenerateUpgradePlanResponse(status="Success", control_plane_upgrades=steps)


@ext.handler(BeforeClusterUpgrade)
async def wait(_: Call[BeforeClusterUpgrade, None]) -> Response:
    """Not yet."""
    return retry_after(30, "not yet")


def agree(_: Call[Any, None]) -> Response:
    """Do not block."""
    return proceed()


answered = {handler.hook for handler in ext.handlers}
for hook in CLUSTER_API:
    if not hook.singleton and hook not in answered:
        ext.handler(hook, name=hook.id.name.lower())(agree)

if __name__ == "__main__":
    serve(ext)
