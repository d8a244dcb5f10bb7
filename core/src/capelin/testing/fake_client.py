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
    """A clock that a test controls. Calling it returns the time."""

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class FakeClient(Client):
    """A client of an in-memory API server.

    It stores, patches and applies objects like the real one: field managers, finalizers,
    generations, resource versions and errors are the same. It serves the kinds of
    `capelin.api.core` and `capelin.api.capi`, and those in `kinds`.

    Not supported: watches, the scale, token and eviction subresources, pages, conversion
    between versions, CEL rules, admission, garbage collection of dependents, and the contents
    of namespaces. The class of a kind with a CRD validates its objects. For other kinds, this
    checks only types, and replaces lists as a whole except for `conditions`.

    Args:
        kinds: Kinds to serve. A class brings its schema.
        manager: The field manager of `apply`.
        clock: The times in metadata. Tests can set it.
        server: Another client's server, to share its objects. Default: a new one.
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
        """The requests so far. Tests may clear it."""
        return self.server.requests

    @property
    def writes(self) -> list[str]:
        """Method and path of each request that was not only a read."""
        return [f"{r.method} {r.path}" for r in self.requests if r.method != "GET"]

    def install(self, *kinds: type[BaseObject] | Resource) -> None:
        for kind in kinds:
            self.server.install(kind)

    def add(self, obj: ObjectT) -> ObjectT:
        """Store an object with its status, without a request. Returns the stored object.

        An object with a deletion timestamp and finalizers is under deletion.
        """
        kind = type(obj)
        if not self.server.serves(kind.resource):
            self.install(kind)
        return kind.read(self.server.add(kind.resource, obj.dump()))


# Objects


def cluster(name: str, namespace: str = "default", **spec: Any) -> capi.Cluster:
    """A Cluster. Keyword arguments are fields of its spec."""
    return capi.Cluster.of(name, namespace, spec=capi.ClusterSpec(**spec))


def machine(name: str, cluster: capi.Cluster, **spec: Any) -> capi.Machine:
    """A Machine of a Cluster, which owns it if the Cluster is stored."""
    bootstrap = spec.pop("bootstrap", capi.Bootstrap(data_secret_name=f"{name}-bootstrap"))
    return capi.Machine(
        metadata=_part_of(cluster, name),
        spec=capi.MachineSpec(cluster_name=cluster.name, bootstrap=bootstrap, **spec),
    )


def machine_pool(
    name: str, cluster: capi.Cluster, *, replicas: int = 1, version: str | None = None, **spec: Any
) -> capi.MachinePool:
    """A MachinePool of a Cluster, which owns it if the Cluster is stored."""
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
