"""A client without a server, for tests of reconcilers, and objects for them.

    client = FakeClient(Shoal)
    demo = client.add(cluster("demo"))
    shoal = await client.create(Shoal.of("a", "default", spec=ShoalSpec(size=3)))

`FakeClient` is a real `Client` whose requests end in an in-memory API server.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from capelin.api import BaseObject, ObjectMeta, OwnerReference, Resource, capi
from capelin.client import Client, Config, Request, Server, User
from capelin.contract import CLUSTER_NAME_LABEL
from capelin.testing.fake_server import FakeServer

ObjectT = TypeVar("ObjectT", bound=BaseObject)


class Clock:
    """A clock that stands still until a test sets it. Calling it gives the time."""

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class FakeClient(Client):
    """A client of an in-memory API server.

    It stores objects, patches them and applies them as the real one does: field managers,
    finalizers, generations, resource versions and errors are the same. The kinds of
    `capelin.api.core` and `capelin.api.capi` are served; others are given here.

    Not done: watches, the scale, token and eviction subresources, pages, conversion between
    versions, CEL rules, admission, garbage collection of dependents, and the contents of
    namespaces. A kind with a CRD is validated by its class. Of other kinds only types are
    checked, and their lists are replaced as a whole except for `conditions`.

    Args:
        kinds: kinds to serve; a class brings its schema.
        manager: the field manager of `apply`.
        clock: gives the times in metadata; settable.
        server: another client's server, to share its objects; a new one if not given.
    """

    def __init__(
        self,
        *kinds: type[BaseObject] | Resource,
        manager: str = "capelin",
        clock: Clock | None = None,
        server: FakeServer | None = None,
    ) -> None:
        super().__init__(Config(Server("https://fake.invalid"), User()), manager=manager)
        self.clock = clock or Clock()
        self.server = server or FakeServer(self.clock)
        self._transport = cast("Any", self.server)
        self.install(*kinds)

    @property
    def requests(self) -> list[Request]:
        """The requests so far; may be cleared."""
        return self.server.requests

    @property
    def writes(self) -> list[str]:
        """Method and path of each request that was not only a read."""
        return [f"{r.method} {r.path}" for r in self.requests if r.method != "GET"]

    def install(self, *kinds: type[BaseObject] | Resource) -> None:
        for kind in kinds:
            self.server.install(kind)

    def add(self, obj: ObjectT) -> ObjectT:
        """Store an object with its status, without a request; return it as it is stored.

        One with a deletion timestamp and finalizers is being deleted.
        """
        kind = type(obj)
        if not self.server.serves(kind.resource):
            self.install(kind)
        return kind.read(self.server.add(kind.resource, obj.dump()))


# Objects


def cluster(name: str, namespace: str = "default", **spec: Any) -> capi.Cluster:
    """A Cluster; keyword arguments are fields of its spec."""
    return capi.Cluster.of(name, namespace, spec=capi.ClusterSpec(**spec))


def machine(name: str, cluster: capi.Cluster, **spec: Any) -> capi.Machine:
    """A Machine of a Cluster, owned by it if it is stored."""
    bootstrap = spec.pop("bootstrap", capi.Bootstrap(data_secret_name=f"{name}-bootstrap"))
    return capi.Machine(
        metadata=_part_of(cluster, name),
        spec=capi.MachineSpec(cluster_name=cluster.name, bootstrap=bootstrap, **spec),
    )


def machine_pool(
    name: str, cluster: capi.Cluster, *, replicas: int = 1, version: str | None = None, **spec: Any
) -> capi.MachinePool:
    """A MachinePool of a Cluster, owned by it if it is stored."""
    bootstrap = capi.Bootstrap(data_secret_name=f"{name}-bootstrap")
    template = capi.MachineTemplate(
        spec=capi.MachineSpec(cluster_name=cluster.name, bootstrap=bootstrap, version=version)
    )
    fields = {"cluster_name": cluster.name, "replicas": replicas, "template": template, **spec}
    return capi.MachinePool(
        metadata=_part_of(cluster, name), spec=capi.MachinePoolSpec(**cast("Any", fields))
    )


def _part_of(cluster: capi.Cluster, name: str) -> ObjectMeta:
    owner = OwnerReference(
        api_version=cluster.resource.api_version,
        kind=cluster.resource.kind,
        name=cluster.name,
        uid=cluster.uid,
    )
    return ObjectMeta(
        name=name,
        namespace=cluster.namespace,
        labels={CLUSTER_NAME_LABEL: cluster.name},
        owner_references=[owner] if cluster.uid else [],
    )
