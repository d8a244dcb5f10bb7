"""Charts and component files of a provider that converts and validates objects."""

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from annotated_types import Ge, Le
from capelin.api import (
    Model,
    Object,
    Problem,
    Unstructured,
    converts,
    kind,
    move_field,
    validates,
)
from capelin.controller import Context, Done, For, Reconciler, Result
from capelin.provider import Provider
from capelin.yaml import read_all_yaml
from capelin_embedded.binaries import Binaries
from capelin_release.charts import kinds_chart
from capelin_release.components import render_chart, render_components
from capelin_release.repository import provider_installation
from capelin_release.tools import HELM

pytestmark = [pytest.mark.needs_programs(HELM), pytest.mark.timeout(300)]

GROUP = "sea.example.com"
Count = Annotated[int, Ge(0), Le(9)]


class OldSpec(Model):
    fins: Count = 2


class Spec(Model):
    fin_count: Count = 2


@kind(group=GROUP, version="v1alpha1", name="Fish")
class OldFish(Object[OldSpec, OldSpec]):
    """A fish."""


@kind(group=GROUP, version="v1")
class Fish(Object[Spec, OldSpec]):
    """A fish."""


@kind(group=GROUP, version="v1")
class Shell(Object[Spec, OldSpec]):
    """A shell."""


@converts(OldFish, Fish)
def upgrade(fish: Unstructured) -> None:
    move_field(fish, "spec.fins", "spec.finCount")


@converts(Fish, OldFish)
def downgrade(fish: Unstructured) -> None:
    move_field(fish, "spec.finCount", "spec.fins")


@validates(Fish)
def has_even_fins(fish: Fish, _: Fish | None) -> Iterator[Problem]:
    if fish.spec.fin_count % 2:
        yield Problem("spec.finCount", "must be even")


class Fishes(Reconciler[Fish]):
    watches = (For(Fish),)

    async def reconcile(self, _: Context, __: Fish, /) -> Result:
        return Done()


class Shells(Reconciler[Shell]):
    watches = (For(Shell),)

    async def reconcile(self, _: Context, __: Shell, /) -> Result:
        return Done()


PROVIDER = Provider.of(
    "fish",
    "AddonProvider",
    version="v0.1.0",
    module="fish",
    reconcilers=[Fishes],
    kinds=[OldFish],
)
INSTALLATION = provider_installation(
    PROVIDER, version="0.1.0", registry="registry.example", description="Fish."
)
(CHART,) = INSTALLATION.charts
CRD = f"fishes.{GROUP}"


def by_name(objects: list[Unstructured]) -> dict[tuple[str, str], Any]:
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects}


async def rendered(**values: Any) -> dict[tuple[str, str], Any]:
    return by_name(await render_chart(CHART, "tank", "ocean", Binaries(), values))


def calls(definition: Unstructured) -> Any:
    assert definition["spec"]["conversion"]["strategy"] == "Webhook"
    return definition["spec"]["conversion"]["webhook"]["clientConfig"]["service"]


async def test_a_release_calls_its_own_service_with_a_certificate() -> None:
    objects = await rendered(networkPolicy={"enabled": True})
    name = "tank-fish"
    assert calls(objects["CustomResourceDefinition", CRD]) == {
        "name": name,
        "namespace": "ocean",
        "path": "/convert",
    }
    annotations = objects["CustomResourceDefinition", CRD]["metadata"]["annotations"]
    assert annotations["cert-manager.io/inject-ca-from"] == f"ocean/{name}"
    validation = objects["ValidatingWebhookConfiguration", "addon-fish-validation"]
    assert validation["metadata"]["annotations"] == {
        "cert-manager.io/inject-ca-from": f"ocean/{name}"
    }
    (webhook,) = validation["webhooks"]
    assert webhook["clientConfig"]["service"]["name"] == name
    (port,) = objects["Service", name]["spec"]["ports"]
    assert port == {"name": "webhooks", "port": 443, "targetPort": "webhooks"}
    certificate = objects["Certificate", name]["spec"]
    assert f"{name}.ocean.svc" in certificate["dnsNames"]
    assert annotations["helm.sh/resource-policy"] == "keep"
    assert objects["Deployment", name]["spec"]["replicas"] == 2
    pod = objects["Deployment", name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {"--webhook-address=:9443", "--cert-dir=/certificates"} < set(container["args"])
    assert {"name": "webhooks", "containerPort": 9443} in container["ports"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz/webhooks"
    assert container["lifecycle"]["preStop"]["sleep"]["seconds"] == 5
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["certificate"] == "/certificates"
    secret = {"name": "certificate", "secret": {"secretName": certificate["secretName"]}}
    assert secret in pod["volumes"]
    (rule,) = objects["NetworkPolicy", name]["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == ["health", "metrics", "webhooks"]


async def test_other_certificates_than_cert_managers_are_possible() -> None:
    objects = await rendered(certManager={"enabled": False}, certificateSecret="mine")
    assert not {"Issuer", "Certificate"} & {kind for kind, _ in objects}
    annotations = objects["CustomResourceDefinition", CRD]["metadata"]["annotations"]
    assert annotations == {"helm.sh/resource-policy": "keep"}
    pod = objects["Deployment", "tank-fish"]["spec"]["template"]["spec"]
    assert {"name": "certificate", "secret": {"secretName": "mine"}} in pod["volumes"]


async def test_component_files_have_the_webhook() -> None:
    text = await render_components(PROVIDER, [CHART], Binaries())
    objects = by_name([obj for obj in read_all_yaml(text) if obj])
    name, namespace = "addon-fish", "addon-fish-system"
    definition = objects["CustomResourceDefinition", CRD]
    assert calls(definition) == {"name": name, "namespace": namespace, "path": "/convert"}
    assert definition["metadata"]["annotations"] == {
        "cert-manager.io/inject-ca-from": f"{namespace}/{name}"
    }
    for kind_ in ("Service", "Certificate", "Issuer"):
        assert objects[kind_, name]["metadata"]["namespace"] == namespace
    validation = objects["ValidatingWebhookConfiguration", "addon-fish-validation"]
    assert validation["metadata"]["annotations"] == {
        "cert-manager.io/inject-ca-from": f"{namespace}/{name}"
    }
    (webhook,) = validation["webhooks"]
    service = {"name": name, "namespace": namespace, "path": "/validate"}
    assert webhook["clientConfig"] == {"service": service}
    (rule,) = webhook["rules"]
    assert (rule["apiVersions"], rule["resources"]) == (["v1"], ["fishes"])


async def test_an_uninstall_keeps_kinds_without_webhooks_too() -> None:
    simple = Provider.of(
        "shell", "AddonProvider", version="v0.1.0", module="shell", reconcilers=[Shells]
    )
    (chart,) = provider_installation(
        simple, version="0.1.0", registry="registry.example", description="Shells."
    ).charts
    objects = by_name(await render_chart(chart, "tank", "ocean", Binaries()))
    annotations = objects["CustomResourceDefinition", f"shells.{GROUP}"]["metadata"]["annotations"]
    assert annotations == {"helm.sh/resource-policy": "keep"}
    assert not {"Service", "Certificate"} & {kind for kind, name in objects if name == "tank-shell"}


def test_kinds_with_webhooks_stay_with_their_pods() -> None:
    with pytest.raises(ValueError, match="keep them in the chart of its pods"):
        kinds_chart([PROVIDER], name="x", version="0.1.0", description="x", part_of="x")
