"""What the Python package of a provider or extension tells the tools that install it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from capelin.api import Unstructured
from capelin.contract.names import ProviderType, provider_label

ENTRY_POINTS: Final = "capelin.providers"
"""The entry point group whose values are functions `() -> Provider`."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider or extension that an installed Python package brings."""

    name: str
    type: ProviderType
    version: str
    """As in `v0.1.0`."""
    module: str
    """Started as `python -m <module>`: a manager of `capelin.controller`, or for a
    `RuntimeExtensionProvider` a server of `capelin.runtime`, with the flags that these have."""
    crds: Sequence[Unstructured] = ()
    rules: Sequence[Unstructured] = ()
    """The RBAC rules, in the whole cluster, of its service account."""
    arguments: Sequence[str] = ()
    """Flags beyond those that every manager gets."""
    programs: Sequence[str] = ()
    """What it runs on this machine, as the binaries are asked for; those of Kubernetes without a
    version, since an environment's is taken."""
    objects: Sequence[Unstructured] = field(default=())
    """What else it needs, such as an ExtensionConfig; sent when Cluster API answers.

    A `clientConfig.service` in them is replaced by the URL of the process.
    """

    @property
    def label(self) -> str:
        """As in `control-plane-capelin`: what clusterctl, and our processes, call it."""
        return provider_label(self.type, self.name)

    @property
    def namespace(self) -> str:
        """Where its service account lives."""
        return f"{self.label}-system"

    def components(self) -> list[Unstructured]:
        """What its installation consists of."""
        account = {"kind": "ServiceAccount", "name": self.label, "namespace": self.namespace}
        role = f"{self.namespace}-manager"
        return [
            *self.crds,
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}},
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": self.label, "namespace": self.namespace},
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": role},
                "rules": list(self.rules),
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": role},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": role,
                },
                "subjects": [account],
            },
        ]
