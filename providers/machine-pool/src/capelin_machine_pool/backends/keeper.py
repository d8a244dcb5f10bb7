"""Starts KWOK once nobody else holds its Nodes' leases: `keeper KUBECONFIG PROGRAM ARGUMENT…`.

KWOK has another name each time that it starts, and waits until the leases of a former one are over.
"""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

from capelin.api.views.core import Lease, Node
from capelin.client import Client, ClientError, ClientOptions, Config

KEPT_ALIVE = "kwok.x-k8s.io/node"
"""The label of Nodes that are kept alive. KWOK does not notice when an annotation goes."""
LEASES = "kube-node-lease"

_LONGEST = 20.0


async def let_go_of_leases(kubeconfig: Path) -> None:
    """Delete the leases of Nodes that are kept alive; whoever keeps them alive makes new ones."""
    config = Config.from_kubeconfig(kubeconfig)
    async with asyncio.timeout(_LONGEST), Client(config, options=ClientOptions(qps=0)) as client:
        for node in (await client.list(Node, labels={KEPT_ALIVE: "fake"})).items:
            await client.delete(Lease, node.name, LEASES)


def main() -> None:
    """Become KWOK, also where the leases could not be deleted: they end by themselves."""
    kubeconfig, *command = sys.argv[1:]
    with suppress(ClientError, OSError, TimeoutError):
        asyncio.run(let_go_of_leases(Path(kubeconfig)))
    os.execv(command[0], command)  # noqa: S606 - the program that the provider names


if __name__ == "__main__":
    main()
