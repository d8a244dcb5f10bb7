"""What the Python package of a provider or extension tells the tools that install it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, overload

from capelin.api import BaseObject, Unstructured, crd, immutable_templates
from capelin.contract import ProviderType, provider_label
from capelin.provider.roles import aggregated_roles, is_aggregated
from capelin.provider.topology import topology_owned

if TYPE_CHECKING:
    from capelin.controller import Reconciler

    Reconcilers = Sequence[type[Reconciler[Any]]]

Kinds = Sequence[type[BaseObject]]

ENTRY_POINTS: Final = "capelin.providers"
"""The entry point group whose values are functions `() -> Provider`."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_VERSION: Final = re.compile(r"v\d+\.\d+\.\d+([-+.a-z][-+.0-9A-Za-z]*)?")


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
    manager: str = ""
    """The name that its manager gives `capelin.controller.main`, and with it the lease that it may
    hold. Empty where there is no manager, or always one."""
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
    on_request: bool = False
    """Whether environments have it only if they ask for it: `capelin up --with NAME`."""

    @classmethod
    def of(
        cls,
        name: str,
        type_: ProviderType,
        *,
        version: str,
        module: str,
        reconcilers: "Reconcilers",
        manager: str = "",
        kinds: Kinds = (),
        arguments: Sequence[str] = (),
        programs: Sequence[str] = (),
        objects: Sequence[Unstructured] = (),
        on_request: bool = False,
    ) -> Self:
        """A provider that consists of these reconcilers.

        Its CRDs and its permissions follow from them: the kinds that they are for, a template of
        each one that a contract knows, and the policies that templates of machines do not change
        and that only controllers change objects of a topology.

        Args:
            name: What clusterctl calls it, without what it is: `fish`.
            type_: What it is, in clusterctl's words.
            version: As in `v0.1.0`.
            module: What `python -m` starts as its manager.
            reconcilers: All that its manager runs.
            manager: The manager's name, and with it that of the lease of a leader election.
            kinds: Kinds beyond those of the reconcilers, such as templates with specs of their own.
            arguments: Flags beyond those that every manager gets.
            programs: What it runs on this machine, by the names of the binaries.
            objects: What else it needs, such as admission policies.
            on_request: Whether environments have it only if they ask for it.

        Raises:
            ValueError: the name, the version or a kind is invalid.
        """
        _check_names(name, version)
        # Tools that only install providers do not import their managers.
        from capelin.controller import rbac  # noqa: PLC0415
        from capelin.provider.reconciler import (  # noqa: PLC0415
            contract_kinds,
            kinds_of,
            machine_templates,
        )

        label = provider_label(type_, name)
        all_kinds = kinds_of(reconcilers, kinds)

        def crds() -> list[Unstructured]:
            return [crd(kind, provider=label) for kind in all_kinds]

        frozen = machine_templates(reconcilers, all_kinds)
        policies = immutable_templates(f"{label}-templates", *frozen) if frozen else []
        if owned := contract_kinds(reconcilers, all_kinds):
            policies += topology_owned(f"{label}-topology-owned", owned)
        return cls(
            name=name,
            type=type_,
            version=version,
            module=module,
            manager=manager,
            # Most commands ask a provider for its name and its programs only.
            crds=_Lazy(crds),
            rules=_Lazy(lambda: rbac(reconcilers)),
            arguments=arguments,
            programs=programs,
            objects=[*policies, *objects],
            on_request=on_request,
        )

    @property
    def label(self) -> str:
        """As in `control-plane-capelin`: what clusterctl, and our processes, call it."""
        return provider_label(self.type, self.name)

    @property
    def namespace(self) -> str:
        """Where its service account lives."""
        return f"{self.label}-system"

    @property
    def aggregated_roles(self) -> list[Unstructured]:
        """ClusterRoles that let users, and Cluster API's core, use its kinds.

        None if its objects have such roles: the provider has decided itself then.
        """
        if any(is_aggregated(obj) for obj in self.objects):
            return []
        return aggregated_roles(self.namespace, self.type, self.crds)

    def components(self, namespace: str | None = None) -> list[Unstructured]:
        """What its installation consists of.

        Args:
            namespace: The only namespace whose objects it may see and change: that of its
                manager's `--namespace`. By default, and for cluster-scoped kinds, it is the whole
                cluster.
        """
        group = "rbac.authorization.k8s.io"
        scope = "Cluster" if namespace is None else ""
        name = f"{self.namespace}-manager"
        metadata = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
        account = {"kind": "ServiceAccount", "name": self.label, "namespace": self.namespace}
        role = {"apiGroup": group, "kind": f"{scope}Role", "name": name}
        return [
            *self.crds,
            *self.aggregated_roles,
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}},
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": self.label, "namespace": self.namespace},
            },
            {
                "apiVersion": f"{group}/v1",
                "kind": f"{scope}Role",
                "metadata": metadata,
                "rules": list(self.rules),
            },
            {
                "apiVersion": f"{group}/v1",
                "kind": f"{scope}RoleBinding",
                "metadata": metadata,
                "roleRef": role,
                "subjects": [account],
            },
        ]


def _check_names(name: str, version: str) -> None:
    if not _NAME.fullmatch(name):
        rule = "lowercase letters, digits and dashes, at most 40"
        raise ValueError(f"the name of a provider consists of {rule}, and {name!r} does not")
    if not _VERSION.fullmatch(version):
        raise ValueError(f"the version of a provider looks like v0.1.0, and {version!r} does not")


class _Lazy(Sequence[Unstructured]):
    """A sequence that is made when it is first looked into."""

    def __init__(self, make: Callable[[], Sequence[Unstructured]]) -> None:
        self._make = make
        self._items: Sequence[Unstructured] | None = None

    @overload
    def __getitem__(self, index: int) -> Unstructured: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Unstructured]: ...
    def __getitem__(self, index: int | slice) -> Unstructured | Sequence[Unstructured]:
        return self._made()[index]

    def __len__(self) -> int:
        return len(self._made())

    def _made(self) -> Sequence[Unstructured]:
        if self._items is None:
            self._items = self._make()
        return self._items
