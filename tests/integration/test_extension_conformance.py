"""Cluster API's own reference extension against the rules of conformance."""

from pathlib import Path

import pytest
from capelin.runtime.client import Endpoint
from capelin.runtime.fixtures import sample_cluster
from capelin_conformance.extensions import check_extension

from tests.extensions import HOST, certificates, reference

pytestmark = [pytest.mark.timeout(300), pytest.mark.needs_programs("test-extension")]


@pytest.mark.representative
async def test_cluster_apis_reference_extension_passes_every_rule(
    tmp_path: Path, kubeconfig: Path, namespace: str
) -> None:
    variables = {"imageRepository": "kindest", "kubeadmControlPlaneMaxSurge": "1"}
    # It plans only upgrades to versions that it has images of.
    scene = sample_cluster(
        "example",
        namespace,
        from_version="v1.33.7",
        to_version="v1.34.3",
        variables=variables,
    )
    settings = {"extensionConfigName": "reference", "defaultAllHandlersToBlocking": "false"}
    ca = certificates(tmp_path)
    async with reference(tmp_path, kubeconfig) as running:
        address = Endpoint(HOST, running.port, ca=ca)
        report = await check_extension(address, cluster=scene, settings=settings)
    assert {v.rule.name: v.problems for v in report.results if v.problems} == {}
    assert len(report.handlers) >= 16
