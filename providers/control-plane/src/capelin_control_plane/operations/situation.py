"""A control plane in one reconcile."""

from dataclasses import dataclass

from capelin.client import Config
from capelin.controller import ObjectKey

from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.backends import Backend
from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import Endpoint, Observed
from capelin_control_plane.keys.certificates import Authorities
from capelin_control_plane.keys.encryption_keys import EncryptionKeys
from capelin_control_plane.operations.engine import key_of


@dataclass(frozen=True, slots=True)
class Situation:
    """The desired and the observed state of a control plane, and how to reach it."""

    obj: CapelinControlPlane
    desired: ControlPlane
    observed: Observed
    authorities: Authorities
    """Its CAs and keys."""
    encryption_keys: EncryptionKeys | None
    """Its keys of encryption at rest."""
    endpoint: Endpoint
    backend: Backend

    @property
    def key(self) -> ObjectKey:
        return key_of(self.obj)

    def config(self) -> Config:
        """How to reach its API servers."""
        return self.backend.client_config(self.endpoint)
