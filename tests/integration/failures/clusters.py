"""Clusters whose own parts are paused, missing or refused."""

from capelin.api.capi import Cluster
from capelin.api.core import Secret

from tests.integration.pools import VERSION, reference

from .scene import CREATOR, PAUSED, PAUSER, SECRET_CREATOR, Scene, failure


@failure("ClusterPaused", "Cluster {name}", PAUSER)
async def paused_cluster(scene: Scene) -> None:
    await scene.create({"paused": True})


@failure("Paused", "CapelinControlPlane {name}", PAUSER)
async def paused_control_plane(scene: Scene) -> None:
    await scene.create(annotations={"CapelinControlPlane": PAUSED})


@failure("Paused", "CapelinCluster {name}", PAUSER)
async def paused_infrastructure(scene: Scene) -> None:
    await scene.create(annotations={"CapelinCluster": PAUSED})


@failure("ObjectMissing", "CapelinCluster {name}", CREATOR)
async def missing_infrastructure(scene: Scene) -> None:
    await scene.create(leave_out="CapelinCluster")


@failure("ObjectMissing", "CapelinControlPlane {name}", CREATOR)
async def missing_control_plane(scene: Scene) -> None:
    await scene.create(leave_out="CapelinControlPlane")


@failure("KindNotServed", "TunaCluster x", "the administrator of the management cluster")
async def unknown_kind(scene: Scene) -> None:
    await scene.create({"infrastructureRef": reference("infrastructure", "TunaCluster", "x")})


@failure("ObjectMissing", "ClusterClass tuna", CREATOR)
async def missing_class(scene: Scene) -> None:
    topology = {"classRef": {"name": "tuna"}, "version": VERSION}
    await scene.apply(
        {
            "apiVersion": Cluster.resource.api_version,
            "kind": "Cluster",
            "metadata": {"name": scene.name, "namespace": scene.name},
            "spec": {"topology": topology},
        }
    )


@failure("SecretMissing", "Secret my-key", SECRET_CREATOR)
async def missing_encryption_key(scene: Scene) -> None:
    await scene.create(
        control_plane={"apiServer": {"encryption": {"keysFrom": {"name": "my-key"}}}}
    )


@failure("Reported", "CapelinControlPlane {name}", "control-plane-capelin")
async def broken_authority(scene: Scene) -> None:
    data = {"tls.crt": b"no certificate", "tls.key": b"no key"}
    await scene.client.create(Secret.of(f"{scene.name}-ca", scene.name, data=data))
    await scene.create()


@failure("Reported", "CapelinControlPlane {name}", "control-plane-capelin")
async def short_encryption_key(scene: Scene) -> None:
    await scene.client.create(Secret.of("my-key", scene.name, data={"key": b"short"}))
    await scene.create(
        control_plane={"apiServer": {"encryption": {"keysFrom": {"name": "my-key"}}}}
    )


@failure("Asleep", "CapelinControlPlane {name}", "the person or schedule that put it to sleep")
async def sleeping_control_plane(scene: Scene) -> None:
    await scene.ready()
    await scene.sleep()
