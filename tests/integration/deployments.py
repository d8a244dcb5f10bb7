"""A MachineDeployment of simulated machines, object by object."""

from capelin.api import Unstructured

from .pools import VERSION, Whole, reference

DEPLOYED = "deployed"


def deployment_manifests(
    whole: Whole, replicas: int, *, domain: str | None = None
) -> list[Unstructured]:
    """A MachineDeployment whose machines boot at once."""
    meta = {"name": DEPLOYED, "namespace": whole.namespace}
    node = {"name": "{{ ds.meta_data.local_hostname }}"}
    join = {"joinConfiguration": {"nodeRegistration": node}}
    instant = {"simulated": {"startupSeconds": 0, "startupJitterSeconds": 0}}
    machine = {
        "clusterName": whole.name,
        "version": VERSION,
        **({"failureDomain": domain} if domain else {}),
        "bootstrap": {"configRef": reference("bootstrap", "KubeadmConfigTemplate", DEPLOYED)},
        "infrastructureRef": reference("infrastructure", "CapelinMachineTemplate", DEPLOYED),
    }
    return [
        {
            "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
            "kind": "KubeadmConfigTemplate",
            "metadata": meta,
            "spec": {"template": {"spec": join}},
        },
        {
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1",
            "kind": "CapelinMachineTemplate",
            "metadata": meta,
            "spec": {"template": {"spec": instant}},
        },
        {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "MachineDeployment",
            "metadata": meta,
            "spec": {
                "clusterName": whole.name,
                "replicas": replicas,
                "template": {"spec": machine},
            },
        },
    ]
