"""What a control plane is made of: one package a backend, behind one protocol."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from capelin.client import Config
from capelin.controller import ObjectKey

from capelin_control_plane.certificates import Authorities
from capelin_control_plane.desired import ControlPlane
from capelin_control_plane.plan import Component
from capelin_control_plane.workload.facts import server_url


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One instance of a component, as it is now."""

    name: str
    component: Component
    version: str
    ready: bool
    current: bool | None
    """Whether it runs as it is wanted; nothing while the programs are not there to tell by."""
    failure: str = ""
    """Why it ended, when it has and is being started again."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that keeps a control plane from what is wanted; what runs goes on."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A control plane as it is now."""

    parts: tuple[Part, ...] = ()
    complete: bool = False
    """Whether exactly the wanted instances are there, ready or not."""
    problem: Problem | None = None
    renew_at: datetime | None = None
    """When the first certificate has to be made anew."""

    def of(self, component: Component) -> tuple[Part, ...]:
        """The instances of a component."""
        return tuple(part for part in self.parts if part.component == component)

    @property
    def answers(self) -> bool:
        """Whether an API server is ready, and what stands in front of it too."""
        return any(part.ready for part in self.of("kube-apiserver")) and all(
            part.ready for part in self.of("relay")
        )


@dataclass(frozen=True, slots=True)
class Site:
    """Where a control plane is."""

    address: str
    """What it is known by in its backend; it stays, whatever else changes."""
    host: str
    port: int

    @property
    def server(self) -> str:
        """The URL at which the API answers."""
        return server_url(self.host, self.port)


class Backend(Protocol):
    """Makes control planes real."""

    async def claim(
        self, wanted: ControlPlane, authorities: Authorities, address: str | None
    ) -> Site | Problem:
        """Find the place of a control plane, or take one; `address` is from an earlier claim."""
        ...

    async def find(self, namespace: str, cluster: str, ca_certificate_pem: bytes) -> str | None:
        """The address of a control plane that has a place, whether or not it was ever told."""
        ...

    async def move(
        self,
        key: ObjectKey,
        site: Site,
        wanted: ControlPlane,
        authorities: Authorities,
        now: datetime,
    ) -> Observed:
        """Take the next step towards what is wanted, and tell what there is."""
        ...

    async def look_after(self, key: ObjectKey, cluster: str, address: str) -> None:
        """Keep up what there is of a control plane, as it was planned last; never another one's.

        For as long as nobody can say what is wanted.
        """
        ...

    def workload(self, site: Site) -> Config:
        """How the provider itself talks to the API of a control plane."""
        ...

    async def release(self, key: ObjectKey) -> None:
        """Stop looking after a control plane; it runs on."""
        ...

    async def remove(self, key: ObjectKey, cluster: str, address: str) -> None:
        """Stop a control plane and remove all that there is of it; never that of another cluster.

        `address` is what its object says, which may be a copy of another one's.
        """
        ...


Wake = Callable[[ObjectKey], None]
"""Tells the reconciler that something happened outside the management cluster."""
