"""One server stands in for all Runtime Extensions."""

import json
import ssl
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from capelin.api.capi import ExtensionConfig
from capelin_cli.plan.extensions import UnreachableError, listening

GROUP = "/hooks.runtime.cluster.x-k8s.io/v1alpha1"


def extension() -> ExtensionConfig:
    def handler(name: str, hook: str) -> dict[str, Any]:
        reference = {"apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "hook": hook}
        return {"name": f"{name}.ext", "requestHook": reference, "timeoutSeconds": 5}

    return ExtensionConfig.read(
        {
            "metadata": {"name": "ext"},
            "spec": {"clientConfig": {"url": "https://real.example"}},
            "status": {
                "handlers": [
                    handler("gate", "BeforeClusterUpgrade"),
                    handler("patches", "GeneratePatches"),
                ]
            },
        }
    )


@dataclass
class Real:
    """The real extension."""

    answers: bool = True
    paths: list[str] = field(default_factory=list[str])

    async def answer(self, config: ExtensionConfig, path: str, body: bytes) -> bytes:
        assert json.loads(body) == {"items": []}
        self.paths.append(f"{config.name}{path}")
        if not self.answers:
            raise UnreachableError("no route")
        return b'{"status": "Success", "items": []}'


async def called(real: Real, *paths: str) -> tuple[list[Any], Any]:
    found: list[Any] = []
    async with listening([extension()], real) as server, aiohttp.ClientSession() as session:
        trust = ssl.create_default_context(cadata=server.ca.decode())
        for path in paths:
            url = f"{server.url}/ext{GROUP}/{path}?timeout=5s"
            async with session.post(url, data=b'{"items": []}', ssl=trust) as response:
                found.append(await response.json() if response.status == 200 else response.status)
        return found, server.stand_in


async def test_discovery_lists_the_known_handlers() -> None:
    (answer,), stand_in = await called(Real(), "discovery")
    assert [(each["name"], each["requestHook"]["hook"]) for each in answer["handlers"]] == [
        ("gate", "BeforeClusterUpgrade"),
        ("patches", "GeneratePatches"),
    ]
    await stand_in.discovered(1)


async def test_a_hook_of_the_life_of_a_cluster_is_only_recorded() -> None:
    real = Real()
    (answer,), stand_in = await called(real, "beforeclusterupgrade/gate")
    assert (answer["status"], answer["retryAfterSeconds"]) == ("Success", 0)
    assert [(each.hook, each.handler) for each in stand_in.calls] == [
        ("BeforeClusterUpgrade", "gate.ext")
    ]
    assert real.paths == []


async def test_the_real_extension_answers_hooks_that_compute() -> None:
    real = Real()
    (answer,), stand_in = await called(real, "generatepatches/patches")
    assert answer == {"status": "Success", "items": []}
    assert real.paths == [f"ext{GROUP}/generatepatches/patches"]
    assert stand_in.unreachable == {}


async def test_the_plan_answers_for_a_policy_that_holds_other_plans() -> None:
    real, path = Real(), f"ext{GROUP}/validatetopology/patches"
    body = json.dumps({"settings": {"policy": "shop/planned"}}).encode()
    async with (
        listening([extension()], real, {"shop/planned"}) as server,
        aiohttp.ClientSession() as session,
    ):
        trust = ssl.create_default_context(cadata=server.ca.decode())
        async with session.post(f"{server.url}/{path}", data=body, ssl=trust) as response:
            assert (await response.json())["status"] == "Success"
        assert [each.hook for each in server.stand_in.guarded] == ["ValidateTopology"]
    assert real.paths == []


async def test_an_extension_that_does_not_answer_is_reported() -> None:
    (answer,), stand_in = await called(Real(answers=False), "generatepatches/patches")
    assert answer["status"] == "Failure"
    assert stand_in.unreachable == {
        "patches.ext": "GeneratePatches of patches.ext does not respond: no route"
    }


async def test_unknown_paths() -> None:
    answers, _ = await called(Real(), "nohook/patches")
    assert answers == [404]
