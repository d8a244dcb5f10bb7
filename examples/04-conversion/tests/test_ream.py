"""Both versions of a ream: nothing is lost on the way, and an API server calls the manager."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from capelin.api import TemplateMetadata, convert
from capelin.api.core import CustomResourceDefinition
from capelin.client import Client, Config
from capelin.provider import template_of
from capelin.testing.conversions import check_conversions
from capelin.testing.managers import running
from capelin_embedded.testing.administrator import kinds_in
from capelin_embedded.testing.webhooks import LOOPBACK, local_crds, write_certificate

sys.path.insert(0, str(Path(__file__).parents[1]))
from ream import Ream, Reams, ReamSpecV1Alpha1, ReamV1Alpha1, provider

STATUS: dict[str, Any] = {"ready": True, "initialization": {"provisioned": True}}


def test_a_second_version_takes_at_most_20_lines() -> None:
    text = Path(__file__).parents[1].joinpath("ream.py").read_text()
    section = text.partition("# The first version")[2].partition("# The controller")[0]
    assert len([line for line in section.splitlines() if line.strip()]) <= 20


def test_only_odd_numbers_of_pages_need_the_annotation() -> None:
    check_conversions(provider(), kept=["Ream.spec.pages"])


def test_a_change_of_the_new_version_wins_over_a_kept_value() -> None:
    new = convert(ReamV1Alpha1.of("a", spec=ReamSpecV1Alpha1(pages=5)), Ream)
    assert new.spec.sheets == 3
    new.spec.sheets = 4
    assert convert(new, ReamV1Alpha1).spec.pages == 8


def test_templates_are_converted_like_their_objects() -> None:
    old = template_of(ReamV1Alpha1).read(
        {
            "metadata": {"name": "a"},
            "spec": {
                "template": {"metadata": TemplateMetadata().dump(), "spec": {"pages": 8}},
            },
        }
    )
    assert convert(old, template_of(Ream)).spec.template.spec.sheets == 4


async def test_an_api_server_converts_with_the_manager(
    kubeconfig: Path, namespace: str, tmp_path: Path, install_crds: Callable[..., None]
) -> None:
    install_crds(*kinds_in(provider().rules))
    ca = write_certificate(tmp_path)
    config = Config.from_kubeconfig(kubeconfig)
    webhooks: dict[str, Any] = {"webhook_address": LOOPBACK, "cert_dir": tmp_path}
    async with (
        Client(config) as client,
        running(Reams(), config=config, namespace=namespace, **webhooks) as manager,
    ):
        await asyncio.to_thread(install_crds, *await local_crds(provider(), manager, ca))
        await client.create(ReamV1Alpha1.of("a", namespace, spec=ReamSpecV1Alpha1(pages=5)))
        assert (await client.get(Ream, "a", namespace)).spec.sheets == 3
        await client.patch(Ream, "a", namespace, {"status": STATUS}, subresource="status")
        old = await client.get(ReamV1Alpha1, "a", namespace)
        assert old.spec.pages == 5
        assert old.status is not None
        assert old.status.ready
        await client.patch(ReamV1Alpha1, "a", namespace, {"spec": {"pages": 12}})
        assert (await client.get(Ream, "a", namespace)).spec.sheets == 6
        await client.delete(Ream, "a", namespace)
        for kind in ("reams", "reamtemplates"):
            await client.delete(CustomResourceDefinition, f"{kind}.{Ream.resource.group}")
