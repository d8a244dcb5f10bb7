"""Deletes the leases of a previous KWOK, then runs KWOK: `kwok_launcher KUBECONFIG PROGRAM ARG...`.

KWOK has a new identity each time it starts, and waits until the leases of the old one expire.
"""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

from capelin.api.core import Lease, Node
from capelin.client import Client, ClientError, ClientOptions, Config

MANAGED_LABEL = "kwok.x-k8s.io/node"
"""Label of the Nodes that KWOK keeps ready. KWOK does not notice when an annotation is removed."""
LEASE_NAMESPACE = "kube-node-lease"

_TIMEOUT = 20.0
_OPTIONS = ClientOptions(qps=0, max_bytes=16 << 20)
"""The tenant controls the responses, and the provider's container has one memory limit for all."""


async def delete_leases(kubeconfig: Path) -> None:
    """Delete the leases of the Nodes that KWOK keeps ready. It creates new ones."""
    config = Config.from_kubeconfig(kubeconfig)
    async with asyncio.timeout(_TIMEOUT), Client(config, options=_OPTIONS) as client:
        for node in (await client.list(Node, labels={MANAGED_LABEL: "fake"})).items:
            await client.delete(Lease, node.name, LEASE_NAMESPACE)


def main() -> None:
    """Run KWOK, even if the leases could not be deleted: they expire."""
    kubeconfig, *command = sys.argv[1:]
    with suppress(ClientError, OSError, TimeoutError):
        asyncio.run(delete_leases(Path(kubeconfig)))
    os.execv(command[0], command)  # noqa: S606 - the provider chooses the program


if __name__ == "__main__":
    main()
