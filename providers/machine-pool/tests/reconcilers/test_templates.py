"""What a template says of machines that are not there yet."""

from capelin.client import Client
from capelin.controller import Done
from capelin_machine_pool.api import CapelinMachineTemplate, NodeInfo
from capelin_machine_pool.reconcilers import MachineTemplateReconciler

from .fake_core import context_for


async def test_the_autoscaler_reads_from_a_template_what_its_machines_will_offer(
    provider_crds: None,  # noqa: ARG001 - it is enough that they are there
    client: Client,
    namespace: str,
) -> None:
    simulated = {
        "capacity": {"cpu": "2", "memory": "8Gi"},
        "labels": {"kubernetes.io/arch": "arm64"},
    }
    spec = {"simulated": simulated}
    await client.create(
        {
            "apiVersion": CapelinMachineTemplate.resource.api_version,
            "kind": "CapelinMachineTemplate",
            "metadata": {"name": "small", "namespace": namespace},
            "spec": {"template": {"spec": spec}},
        },
        resource=CapelinMachineTemplate.resource,
    )
    template = await client.get(CapelinMachineTemplate, "small", namespace)
    assert await MachineTemplateReconciler().reconcile(context_for(client), template) == Done()
    said = await client.get(CapelinMachineTemplate, "small", namespace)
    assert said.status is not None
    assert said.status.capacity == {"cpu": "2", "memory": "8Gi"}
    assert said.status.node_info == NodeInfo(architecture="arm64", operating_system="linux")
    await MachineTemplateReconciler().reconcile(context_for(client), said)
    again = await client.get(CapelinMachineTemplate, "small", namespace)
    assert again.metadata.resource_version == said.metadata.resource_version
