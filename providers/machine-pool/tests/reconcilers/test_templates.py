"""A template reports the capacity of its future machines."""

from capelin.client import Client
from capelin.controller import Done
from capelin_machine_pool.api import CapelinMachineTemplate, NodeInfo
from capelin_machine_pool.reconcilers import MachineTemplateReconciler

from .fake_core import context_for


async def test_a_template_reports_capacity_to_the_autoscaler(
    provider_crds: None,  # noqa: ARG001 - installs the CRDs
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
    template = await client.get(CapelinMachineTemplate, "small", namespace)
    assert template.status is not None
    assert template.status.capacity == {"cpu": "2", "memory": "8Gi"}
    assert template.status.node_info == NodeInfo(architecture="arm64", operating_system="linux")
    await MachineTemplateReconciler().reconcile(context_for(client), template)
    again = await client.get(CapelinMachineTemplate, "small", namespace)
    assert again.metadata.resource_version == template.metadata.resource_version
