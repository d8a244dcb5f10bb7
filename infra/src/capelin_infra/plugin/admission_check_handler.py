"""The resource `AdmissionCheck`: waits until webhooks answer."""

import json
from typing import Any, cast

from capelin.client import ClientError
from capelin_cli.terminal.waiting import wait_for

from capelin_infra.plugin.clusters import connected
from capelin_infra.plugin.resource import (
    Operation,
    ResourceHandler,
    failures,
    read_kubeconfig,
)
from capelin_infra.resource_types import (
    ADMISSION_CHECK,
    AdmissionCheckInputs,
    AdmissionCheckState,
)


class AdmissionCheckHandler(ResourceHandler[AdmissionCheckInputs, AdmissionCheckState]):
    """Checks with a dry run, so that nothing remains to be deleted."""

    kind = ADMISSION_CHECK

    def check(self, inputs: AdmissionCheckInputs) -> dict[str, str]:
        found = failures({"kubeconfig": lambda: read_kubeconfig(inputs.kubeconfig)})
        if not {"apiVersion", "kind", "metadata"} <= _manifest(inputs).keys():
            found["manifest"] = "it is not a Kubernetes object in JSON"
        return found

    async def create(
        self, inputs: AdmissionCheckInputs, operation: Operation
    ) -> tuple[str, AdmissionCheckState]:
        manifest = _manifest(inputs)
        async with connected(inputs.kubeconfig) as client:

            async def refusal() -> str | None:
                try:
                    await client.apply(manifest, dry_run=True)
                except ClientError as error:
                    return str(error)
                return None

            title = f"a {manifest['kind']} to be accepted"
            await wait_for(title, refusal, operation.seconds, operation.show)
        name: str = manifest["metadata"]["name"]
        return name, AdmissionCheckState(**inputs.model_dump(by_alias=False), accepted=True)

    async def read(self, id_: str, state: AdmissionCheckState | None) -> AdmissionCheckState | None:
        del id_
        return state

    async def update(
        self,
        id_: str,
        old: AdmissionCheckState,
        new: AdmissionCheckInputs,
        operation: Operation,
    ) -> AdmissionCheckState:
        del id_, old
        _, state = await self.create(new, operation)
        return state

    async def delete(self, id_: str, state: AdmissionCheckState, operation: Operation) -> None:
        del id_, state, operation


def _manifest(inputs: AdmissionCheckInputs) -> dict[str, Any]:
    try:
        manifest = json.loads(inputs.manifest)
    except ValueError:
        return {}
    return cast("dict[str, Any]", manifest) if isinstance(manifest, dict) else {}
