"""An add-on provider in plain kopf: it writes a greeting into the clusters that ask for one."""

import sys
from typing import Any

import kopf
from capelin.api.core import ConfigMap, Secret
from capelin.client import Client, Config
from capelin.controller import Permission, main
from capelin.provider import Provider

CLUSTERS = ("cluster.x-k8s.io", "v1beta2", "clusters")
LABEL = "greetings.example.com/text"


@kopf.on.resume(*CLUSTERS, labels={LABEL: kopf.PRESENT})
@kopf.on.create(*CLUSTERS, labels={LABEL: kopf.PRESENT})
@kopf.on.update(*CLUSTERS, labels={LABEL: kopf.PRESENT})
async def greet(
    *, body: Any, name: str, namespace: Any, labels: Any, status: Any, memo: Any, **_: Any
) -> None:
    if not status.get("initialization", {}).get("controlPlaneInitialized"):
        raise kopf.TemporaryError("The control plane does not answer yet", delay=5)
    secret = await memo.client.get(Secret, f"{name}-kubeconfig", namespace)
    async with Client(Config.from_secret(secret.data["value"])) as workload:
        await workload.apply(ConfigMap.of("greeting", "default", data={"text": labels[LABEL]}))
    kopf.info(body, reason="Greeted", message=f"Wrote the greeting into {name}")


def provider() -> Provider:
    return Provider.of(
        "greetings",
        "AddonProvider",
        version="v0.1.0",
        module="greetings",
        reconcilers=(),
        manager="capelin-greetings",
        kopf=kopf.get_default_registry(),
        permissions=[Permission("", ("secrets",), ("get",))],
    )


if __name__ == "__main__":
    sys.exit(main("capelin-greetings", lambda _: [], kopf=kopf.get_default_registry()))
