"""A Job with Kubernetes' own conformance tests after an upgrade, on machines that run pods.

The upgraded control plane gets its first machine while the policy waits for the Job.
"""

import os
from collections.abc import AsyncGenerator, Callable
from time import monotonic

import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.testing.waiting import until
from capelin_cli.clusters.topology import upgrade_patch
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.management import required_programs, workload_programs

from tests.registry.distribution import DISTRIBUTION

from .conformance_job import BUSYBOX, account_manifests, conformance_images, numbers_of_tests
from .kind_cluster import IMAGE_VERSION
from .node_images import node_image
from .operator_stories import Bed, documented_policy, operator_bed

BEFORE, AFTER = TESTED_KUBERNETES[0], TESTED_KUBERNETES[-1]
ACCOUNT, READER = "conformance", "reader"
# The images of these tests are static programs: tests that need a shell in a pod cannot run.
FOCUS = (
    r"(\[sig-api-machinery\] (Discovery|FieldValidation|Servers with support for Table)"
    r"|Watchers should (be|receive)"
    r"|\[sig-auth\] (SubjectReview|ServiceAccounts should (guarantee|mount|run|update))"
    r"|\[sig-node\] ConfigMap should (fail|run)).*\[Conformance\]"
)
NAME = "shop"
Record = Callable[[str, object], None]

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.needs_programs(
        *required_programs(BEFORE, ("kubeadm-bootstrap",)),
        *workload_programs(BEFORE),
        *workload_programs(AFTER),
        *(DISTRIBUTION, f"kubectl@{AFTER}"),
    ),
]


@pytest.fixture(scope="module")
async def bed(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Bed]:
    """An environment with a policy that runs many tests, and one that may not create objects."""
    async with (
        node_image(IMAGE_VERSION, names=BUSYBOX, images=await conformance_images(AFTER)) as image,
        operator_bed(tmp_path_factory.mktemp("conformance"), (image,)) as bed,
    ):
        await bed.client.apply(conformance_policy(ACCOUNT, FOCUS))
        one_test = "Discovery should validate PreferredVersion"
        await bed.client.apply(conformance_policy(READER, one_test, order=1))
        await bed.stories.are_called("AfterClusterUpgrade", blocks=False)
        await bed.stories.create_class()
        yield bed


async def test_conformance_tests_run_after_an_upgrade(bed: Bed, record_property: Record) -> None:
    stories, client = bed.stories, bed.client
    record_property("load before", os.getloadavg()[0])
    manifest = await bed.prepare(NAME)
    topology = manifest["spec"]["topology"]
    workers = topology.pop("workers")
    topology["version"] = BEFORE
    await stories.create_from(manifest)
    await until(lambda: bed.running_versions(NAME), lambda found: found == [BEFORE], within=300)
    await client.patch(Cluster, NAME, bed.stories.namespace, upgrade_patch(AFTER), type="json")
    await stories.wait_for_message(NAME, f'serviceaccount "{ACCOUNT}" not found')
    assert await bed.running_versions(NAME) == [AFTER]

    began = monotonic()
    async with bed.workload(NAME) as workload:
        for manifest in (
            reader_role(),
            *account_manifests(ACCOUNT, "cluster-admin"),
            *account_manifests(READER, READER),
        ):
            await workload.apply(manifest)
    add = {"op": "add", "path": "/spec/topology/workers", "value": workers}
    await client.patch(Cluster, NAME, bed.stories.namespace, [add], type="json")
    await until(lambda: bed.ready_nodes(NAME), len, within=400)
    record_property("seconds: a Ready node", round(monotonic() - began, 1))
    await stories.wait_for_message(NAME, f"policy {ACCOUNT}: Job kube-system/{ACCOUNT}-")
    assert await stories.phase(ACCOUNT, NAME) == "Running"

    began = monotonic()
    phase = await until(
        lambda: stories.phase(ACCOUNT, NAME), lambda phase: phase != "Running", within=900
    )
    record_property("seconds: conformance tests", round(monotonic() - began, 1))
    log = await bed.result(ACCOUNT)
    record_property("result", log)
    assert phase == "Done", log
    ran, passed, failed = numbers_of_tests(log)
    assert ran == passed >= 20
    assert failed == 0

    # A test fails without permissions. The policy reports that, and does not block.
    ended = {"Done", "Failed"}
    phase = await until(
        lambda: stories.phase(READER, NAME), lambda phase: phase in ended, within=900
    )
    log = await bed.result(READER)
    record_property("result without permissions", log)
    assert phase == "Failed"
    assert numbers_of_tests(log) == (1, 0, 1)

    async def is_free() -> bool:
        return "policy" not in await stories.messages(NAME)

    await until(is_free, within=120)


def conformance_policy(account: str, focus: str, order: int = 0) -> Unstructured:
    """The policy of the page with another ServiceAccount and fewer tests."""
    policy = documented_policy("jobs.md", "conformance")
    policy["metadata"]["name"] = account
    policy["spec"]["order"] = order
    pod = policy["spec"]["action"]["job"]["template"]["template"]["spec"]
    pod["serviceAccountName"] = account
    variables = {variable["name"]: variable for variable in pod["containers"][0]["env"]}
    variables["E2E_FOCUS"]["value"] = focus
    return policy


def reader_role() -> Unstructured:
    """A role that reads everything and changes nothing."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": READER},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}],
    }
