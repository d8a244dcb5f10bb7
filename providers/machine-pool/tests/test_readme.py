"""The README's example is valid."""

from pathlib import Path

import yaml
from capelin.api.capi import MachinePool
from capelin_machine_pool.api import CapelinMachinePool, ClusterSpec, MachinePoolSpec

README = Path(__file__).parents[1] / "README.md"


def test_the_example_is_valid_and_its_references_match() -> None:
    example = README.read_text().split("```yaml\n")[1].split("```")[0]
    machine_pool, _, pool, cluster = yaml.safe_load_all(example)
    spec = MachinePoolSpec.model_validate(pool["spec"])
    reference = MachinePool.read(machine_pool).spec.template.spec.infrastructure_ref
    assert reference is not None
    assert (reference.api_group, reference.kind, reference.name) == (
        CapelinMachinePool.resource.group,
        pool["kind"],
        pool["metadata"]["name"],
    )
    assert spec.rolling_update.max_surge == "25%"
    domains = ClusterSpec.model_validate(cluster["spec"]).failure_domains
    assert [one.name for one in domains] == ["east", "west"]
