"""The condition of a provider's object when its workload cluster's API server misbehaves."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from capelin.api.capi import Cluster
from capelin.client import Client, ClientError, ResponseTooLarge, Unreadable
from capelin.provider import Blocked, ProviderContext


class Workloads:
    """Fake clients of workload clusters."""

    @asynccontextmanager
    async def client(self, *_: object, **__: object) -> AsyncGenerator[Client]:
        yield cast("Client", self)


def context() -> ProviderContext[Any]:
    unused: Any = None
    return ProviderContext(
        client=unused,
        log=unused,
        recorder=unused,
        cluster_or_none=Cluster.model_construct(metadata=Cluster.of("demo", "team").metadata),
        owner_or_none=None,
        draft=unused,
        workloads=cast("Any", Workloads()),
    )


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        (
            ResponseTooLarge("API server at https://evil sent a response of more than 16 MiB"),
            "InvalidResponse",
            "API server at https://evil sent a response of more than 16 MiB",
        ),
        (Unreadable("it is not JSON"), "InvalidResponse", "it is not JSON"),
    ],
)
async def test_workload_failure_blocks(error: ClientError, reason: str, message: str) -> None:
    with pytest.raises(Blocked) as caught:
        async with context().workload():
            raise error
    assert (caught.value.reason, caught.value.message) == (reason, message)
