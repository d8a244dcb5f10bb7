"""The rule and the samples that need an API server with kinds, and no manager."""

from collections.abc import Callable, Sequence
from copy import deepcopy

import pytest
from capelin.api import Unstructured, crd
from capelin.api.core import ConfigMap
from capelin.client import Client
from capelin.provider import template_of
from capelin_conformance.providers import ProviderManifests, Subject, UntriedError, World
from capelin_conformance.providers.bench import STUB_CLUSTER, stub_manifests
from capelin_conformance.providers.benches import MachineBench
from capelin_conformance.providers.machines import template_dry_run

from .desks import DeskMachine, StandingMachine

Installed = Callable[..., None]


def bench_of(
    client: Client,
    namespace: str,
    *definitions: Unstructured,
    samples: Sequence[Unstructured] = (),
) -> MachineBench:
    subject = Subject.of(ProviderManifests(definitions), "infra-machine")
    return MachineBench(World(client, subject, samples), namespace)


async def test_template_accepts_a_dry_run(
    client: Client, namespace: str, install_crds: Installed
) -> None:
    definitions = [crd(DeskMachine), crd(template_of(DeskMachine))]
    install_crds(*definitions)
    bench = bench_of(client, namespace, *definitions)
    assert [problem async for problem in template_dry_run.check(bench)] == []


async def test_immutable_template_rejects_a_dry_run(
    client: Client, namespace: str, install_crds: Installed
) -> None:
    definitions = [crd(StandingMachine), crd(template_of(StandingMachine))]
    spec = definitions[1]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    immutable = {"rule": "!has(self.template.spec.providerID)", "message": "it is immutable"}
    spec["x-kubernetes-validations"] = [immutable]
    install_crds(*definitions)
    bench = bench_of(client, namespace, *definitions)
    problems = [problem async for problem in template_dry_run.check(bench)]
    assert len(problems) == 1
    assert problems[0].startswith("the dry run was rejected")
    assert "it is immutable" in problems[0]


async def test_template_without_provider_id_is_checked_by_its_labels(
    client: Client, namespace: str, install_crds: Installed
) -> None:
    definitions = [crd(DeskMachine), crd(template_of(DeskMachine))]
    install_crds(*definitions)
    published = deepcopy(definitions)
    schema = published[1]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    template = schema["spec"]["properties"]["template"]["properties"]
    del template["spec"]["properties"]["providerID"]
    bench = bench_of(client, namespace, *published)
    assert [problem async for problem in template_dry_run.check(bench)] == []
    del template["metadata"]
    with pytest.raises(UntriedError, match="neither"):
        assert [problem async for problem in template_dry_run.check(bench)]


async def test_samples_of_other_providers_surround_the_object(
    client: Client, namespace: str, install_crds: Installed
) -> None:
    definitions = [crd(DeskMachine)]
    stubs = [obj for obj in stub_manifests() if obj["kind"] == "CustomResourceDefinition"]
    install_crds(*definitions, *stubs)
    cluster = {
        "apiVersion": STUB_CLUSTER.api_version,
        "kind": STUB_CLUSTER.kind,
        "metadata": {"name": "sample"},
        "spec": {"region": "north"},
    }
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
    bench = bench_of(client, namespace, *definitions, samples=[cluster, settings])
    resource = await bench.create_infrastructure()
    assert (await client.get(resource, bench.name, namespace))["spec"] == {"region": "north"}
    assert await client.find(ConfigMap, "settings", namespace)
    del settings["apiVersion"]
    with pytest.raises(UntriedError, match="the sample of ConfigMap has no apiVersion"):
        await bench.create_infrastructure()
