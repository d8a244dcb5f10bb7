"""The table of policies, with the Clusters that wait for them."""

import io
from typing import Any

from capelin.testing.fake_client import FakeClient
from capelin_cli.status.policies import policy_list, read_policies, read_results
from capelin_lifecycle.api import LifecyclePolicy, LifecycleResult
from rich.console import Console

SINCE = "2026-11-22T08:30:00Z"


def policy(**status: Any) -> LifecyclePolicy:
    return LifecyclePolicy.read(
        {
            "metadata": {"name": "freeze", "namespace": "team", "uid": "p"},
            "spec": {
                "hook": "BeforeClusterUpgrade",
                "action": {"approval": {"approvers": ["alice"]}},
            },
            "status": status,
        }
    )


def result(uid: str, phase: str) -> LifecycleResult:
    return LifecycleResult.read(
        {
            "metadata": {
                "name": f"r-{phase}".lower(),
                "namespace": "team",
                "ownerReferences": [
                    {
                        "apiVersion": "cluster.x-k8s.io/v1beta2",
                        "kind": "Cluster",
                        "name": "demo",
                        "uid": uid,
                    }
                ],
            },
            "spec": {
                "policy": {
                    "kind": "LifecyclePolicy",
                    "namespace": "team",
                    "name": "freeze",
                },
                "cluster": {"name": "demo"},
                "hook": "BeforeClusterUpgrade",
                "toVersion": "v1.34.4",
                "action": "approval",
            },
            "status": {"phase": phase, "message": "waits for alice", "since": SINCE},
        }
    )


def test_policies_are_listed_with_their_unfinished_results() -> None:
    invalid = {
        "type": "Valid",
        "status": "False",
        "reason": "InvalidConfiguration",
        "message": "no cron",
        "lastTransitionTime": SINCE,
    }
    screen = io.StringIO()
    table = policy_list(
        [policy(conditions=[invalid])], [result("c", "Failed"), result("c", "Done")]
    )
    Console(file=screen, width=200).print(table)
    text = screen.getvalue()
    assert "team/freeze" in text
    assert "Invalid" in text
    assert "no cron" in text
    assert "Failed" in text
    assert "Done" not in text


def test_a_narrow_terminal_shows_complete_names_and_hooks_of_policies() -> None:
    screen = io.StringIO()
    waiting = result("c", "Waiting")
    Console(file=screen, width=80).print(policy_list([policy()], [waiting]))
    lines = screen.getvalue().splitlines()
    assert lines[0].startswith("team/freeze  BeforeClusterUpgrade  ")
    assert lines[1].startswith("  team/demo  Waiting since ")


async def test_without_the_extension_the_list_of_policies_is_empty() -> None:
    client = FakeClient()
    assert await read_policies(client) == []
    assert await read_results(client) == []
    client.add(policy())
    assert [found.name for found in await read_policies(client)] == ["freeze"]


def test_messages_of_tenants_are_neither_markup_nor_control_characters() -> None:
    invalid = {
        "type": "Valid",
        "status": "False",
        "reason": "InvalidConfiguration",
        "message": "[/x] [red]no\x1b[2J cron\u202e",
        "lastTransitionTime": SINCE,
    }
    hostile = result("c", "Failed").model_copy(deep=True)
    assert hostile.status is not None
    hostile.status.message = "[/y]\x1b]0;title\x07"
    screen = io.StringIO()
    Console(file=screen, width=200).print(policy_list([policy(conditions=[invalid])], [hostile]))
    text = screen.getvalue()
    assert r"[/x] [red]no\x1b[2J cron\u202e" in text
    assert r"[/y]\x1b]0;title\x07" in text
