"""The ExtensionConfig after `clusterctl init --target-namespace`."""

from typing import Any

import pytest
from capelin.api.capi import ExtensionConfig
from capelin.contract import find_condition
from capelin.controller import ObjectKey
from capelin_lifecycle.api.policies import LifecyclePolicy
from capelin_lifecycle.policies.store import Store
from capelin_lifecycle.reconcilers.policies import policy_problem
from capelin_lifecycle.reconcilers.registration import Registration, namespace_patch

from .factories import policy
from .policies_world import APPROVAL, PoliciesWorld

SECRET = "runtime.cluster.x-k8s.io/inject-ca-from-secret"


def config(namespace: str | None, secret: str = "") -> ExtensionConfig:
    service = {"namespace": namespace, "name": "lifecycle", "port": 443}
    client: dict[str, Any] = {"service": service} if namespace else {"url": "https://127.0.0.1"}
    annotations = {SECRET: secret} if secret else {}
    return ExtensionConfig.read(
        {
            "metadata": {"name": "lifecycle", "annotations": annotations},
            "spec": {"clientConfig": client},
        }
    )


def test_a_wrong_namespace_is_corrected_in_service_and_annotation() -> None:
    assert namespace_patch(config("usual", "usual/certificate"), "own") == {
        "spec": {"clientConfig": {"service": {"namespace": "own"}}},
        "metadata": {"annotations": {SECRET: "own/certificate"}},
    }
    assert namespace_patch(config("own", "usual/certificate"), "own") == {
        "metadata": {"annotations": {SECRET: "own/certificate"}}
    }


@pytest.mark.parametrize("right", [config("own", "own/certificate"), config("own"), config(None)])
def test_a_correct_or_external_registration_is_unchanged(right: ExtensionConfig) -> None:
    assert namespace_patch(right, "own") is None


async def test_policy_is_ready_when_cluster_api_calls_its_hook() -> None:
    world = PoliciesWorld()
    (replica,) = world.replicas
    await world.add_policy("approve", action=APPROVAL)
    await replica.sync()
    registration = Registration(replica.engine.store, "lifecycle", "own")

    async def reason() -> tuple[str, str]:
        await registration.register(replica.ctx)
        await replica.reconcile()
        status = (await world.client.get(LifecyclePolicy, "approve", "team")).status
        ready = find_condition(status.conditions, "Ready") if status else None
        assert ready is not None
        return ready.reason, ready.message

    undiscovered = (
        "NotDiscovered",
        "Cluster API has not discovered the handler before-cluster-upgrade-gate yet",
    )
    assert await reason() == undiscovered
    made = world.client.add(config("own"))
    assert await reason() == undiscovered
    hook = {"apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "hook": "BeforeClusterUpgrade"}
    handlers = [{"name": "before-cluster-upgrade-gate.lifecycle", "requestHook": hook}]
    world.client.add(made.model_copy(update={"status": status_with(handlers)}))
    assert await reason() == ("Ready", "")
    # It is gone, or has another name.
    await world.client.delete(ExtensionConfig, "lifecycle")
    assert await reason() == undiscovered


def test_policies_are_reconciled_when_discovered_handlers_change() -> None:
    store = Store(policy_problem)
    store.note(policy("approve"))
    changed: list[tuple[str, ObjectKey]] = []
    with store.listening(lambda subject, key, _: changed.append((subject, key))):
        store.discover(frozenset({"a"}))
        store.discover(frozenset({"a"}))
    assert changed == [("registration", ObjectKey("team", "approve"))]


def status_with(handlers: list[dict[str, Any]]) -> Any:
    return ExtensionConfig.read({"status": {"handlers": handlers}}).status
