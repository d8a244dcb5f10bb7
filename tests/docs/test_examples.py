"""The manifests of the example providers keep the contracts of all their kinds."""

import runpy
from pathlib import Path

import pytest
from capelin.provider import Provider
from capelin_conformance.providers import Contract, check_manifests, manifests_of

CLUSTER, MACHINE, POOL = "infra-cluster", "infra-machine", "machine-pool"
EXAMPLES: dict[str, dict[str, Contract]] = {
    "01-provider/paper.py": {"PaperCluster": CLUSTER, "PaperMachine": MACHINE},
    "03-pool/pool.py": {
        "SketchCluster": CLUSTER,
        "SketchMachine": MACHINE,
        "SketchMachinePool": POOL,
    },
    "04-conversion/ream.py": {"Ream": MACHINE},
    "06-kopf-handlers/greetings.py": {},
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_manifests_of_an_example_keep_every_contract(example: str) -> None:
    path = Path(__file__).parents[2] / "examples" / example
    provider = runpy.run_path(str(path), run_name=path.stem)["provider"]()
    assert isinstance(provider, Provider)
    kinds = EXAMPLES[example]
    declared = {crd["spec"]["names"]["kind"] for crd in provider.crds}
    assert {kind for kind in declared if not kind.endswith("Template")} == kinds.keys()
    reports = [check_manifests(manifests_of(provider), kinds[kind], kind) for kind in kinds]
    reports.append(check_manifests(manifests_of(provider), "clusterctl"))
    for report in reports:
        assert (report.named("failed"), report.named("advice")) == ([], []), report.title
        assert len(report.named("ok")) > 2
