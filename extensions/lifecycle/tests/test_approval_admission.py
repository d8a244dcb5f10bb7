"""The admission policy about approvals, on a real API server."""

from typing import Any

import pytest
from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.client import ApiError, Client
from capelin.testing.waiting import until
from capelin_lifecycle.admission import approvals_policy

pytestmark = [pytest.mark.usefixtures("provider_crds"), pytest.mark.integration]

KEY = "approval.runtime.capelin.cluster.x-k8s.io/freeze"


async def user_name(client: Client) -> str:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    answer = await client.request("POST", path, body=review)
    return str(answer["status"]["userInfo"]["username"])


def manifest(name: str, namespace: str, value: str | None = None) -> Unstructured:
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    if value is not None:
        metadata["annotations"] = {KEY: value}
    topology = {"classRef": {"name": "small"}, "version": "v1.34.4"}
    return {
        "apiVersion": Cluster.resource.api_version,
        "kind": "Cluster",
        "metadata": metadata,
        "spec": {"topology": topology},
    }


async def test_an_approval_has_a_code_and_the_own_name(client: Client, namespace: str) -> None:
    made = approvals_policy("approvals")
    for obj in made:
        await client.apply(obj)
    await client.create(manifest("demo", namespace))
    own = await user_name(client)

    async def refusal(value: str) -> str:
        patch = {"metadata": {"annotations": {KEY: value}}}
        try:
            await client.patch(Cluster, "demo", namespace, patch, dry_run=True)
        except ApiError as error:
            return str(error)
        return ""

    message = await until(lambda: refusal("0123abcd:somebody"))
    assert "an approval has the value CODE:USER" in message
    for value in (own, f"0123ABCD:{own}", f"0123abcd:x:{own}", f":{own}", "", "0123abcd:"):
        assert await refusal(value) != "", value
    assert await refusal(f"0123abcd:{own}") == ""
    # clusterctl and a restore create the Cluster again, with everything that it had.
    await client.create(manifest("moved", namespace, "0123abcd:somebody"))
    patch = {"metadata": {"labels": {"team": "red"}}}
    await client.patch(Cluster, "moved", namespace, patch)
    for obj in made:
        await client.delete(await client.resource_of(obj), obj["metadata"]["name"])
