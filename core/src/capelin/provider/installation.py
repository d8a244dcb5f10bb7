"""Declares a provider or extension for the tools that install its Python package."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, overload

from capelin.api import (
    CONVERSION_PATH,
    VALIDATION_PATH,
    BaseObject,
    Unstructured,
    crd,
    has_validators,
    immutable_templates,
    validating_webhook,
)
from capelin.contract import ProviderType, provider_label
from capelin.provider.roles import aggregated_roles, is_aggregated
from capelin.provider.topology import topology_owned

if TYPE_CHECKING:
    from kopf import OperatorRegistry

    from capelin.controller import Permission, Reconciler

    Reconcilers = Sequence[type[Reconciler[Any]]]

Kinds = Sequence[type[BaseObject]]

ENTRY_POINTS: Final = "capelin.providers"
"""The entry point group whose values are functions `() -> Provider`."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
_VERSION: Final = re.compile(r"v\d+\.\d+\.\d+([-+.a-z][-+.0-9A-Za-z]*)?")


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider or extension from an installed Python package."""

    name: str
    type: ProviderType
    version: str
    """For example `v0.1.0`."""
    module: str
    """Started as `python -m <module>`: a manager of `capelin.controller`, or for a
    `RuntimeExtensionProvider` a server of `capelin.runtime`, with the flags that these have."""
    manager: str = ""
    """The name that its manager gives `capelin.controller.main`, and with it the name of its lease.
    Empty if it has no manager, or a manager without a lease."""
    crds: Sequence[Unstructured] = ()
    rules: Sequence[Unstructured] = ()
    """The RBAC rules, in the whole cluster, of its service account."""
    arguments: Sequence[str] = ()
    """Flags in addition to those of every manager."""
    programs: Sequence[str] = ()
    """Binaries that it runs on this machine. Those of Kubernetes have no version here, because the
    environment sets it."""
    objects: Sequence[Unstructured] = field(default=())
    """Additional objects, such as an ExtensionConfig, to create when Cluster API answers.

    The URL of the process replaces a `clientConfig.service` in them.
    """
    on_request: bool = False
    """Whether environments have it only on request: `capelin up --with NAME`."""

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
        kopf: "OperatorRegistry | None" = None,
        permissions: "Sequence[Permission]" = (),
    ) -> Self:
        """A provider that consists of these reconcilers.

        They determine its CRDs and permissions: their kinds, the templates that a contract
        requires, and two policies. Templates of machines are immutable, and only controllers
        change objects of a topology. Functions with `validates` get a webhook.

        Args:
            name: Its name in clusterctl, without the type: `fish`.
            type_: Its type in clusterctl.
            version: For example `v0.1.0`.
            module: The module that `python -m` starts as its manager.
            reconcilers: All reconcilers of its manager.
            manager: The manager's name, which is also the name of its lease.
            kinds: Kinds besides those of the reconcilers, such as templates with their own specs,
                and other versions of their kinds, which `converts` connects.
            arguments: Flags in addition to those of every manager.
            programs: Names of the binaries that it runs on this machine.
            objects: Additional objects, such as admission policies.
            on_request: Whether environments have it only on request.
            kopf: The plain kopf handlers of its manager.
            permissions: Permissions of these handlers, besides those that kopf needs.

        Raises:
            ValueError: The name, the version or a kind is invalid.
        """
        if not _NAME.fullmatch(name):
            rule = "lowercase letters, digits and dashes, at most 40"
            raise ValueError(f"the name of a provider consists of {rule}, and {name!r} does not")
        if not _VERSION.fullmatch(version):
            rule = "looks like v0.1.0"
            raise ValueError(f"the version of a provider {rule}, and {version!r} does not")
        # Tools that only install providers do not import their managers.
        from capelin.controller import rbac  # noqa: PLC0415
        from capelin.provider.reconciler import (  # noqa: PLC0415
            contract_kinds,
            kinds_of,
            machine_templates,
        )

        label = provider_label(type_, name)
        all_kinds = kinds_of(reconcilers, kinds)

        service = {"name": label, "namespace": f"{label}-system"}
        conversion = {"service": {**service, "path": CONVERSION_PATH}}

        def crds() -> list[Unstructured]:
            return [
                crd(*versions, provider=label, client_config=conversion) for versions in all_kinds
            ]

        stored = [versions[-1] for versions in all_kinds]
        frozen = machine_templates(reconcilers, stored)
        policies = immutable_templates(f"{label}-templates", *frozen) if frozen else []
        if owned := contract_kinds(reconcilers, stored):
            policies += topology_owned(f"{label}-topology-owned", owned)
        _check_validators(all_kinds)
        if validated := [kind for kind in stored if has_validators(kind)]:
            config = {"service": {**service, "path": VALIDATION_PATH}}
            policies.append(validating_webhook(f"{label}-validation", validated, config))
        return cls(
            name=name,
            type=type_,
            version=version,
            module=module,
            manager=manager,
            # Most commands need only the name and the programs of a provider.
            crds=_Lazy(crds),
            rules=_Lazy(lambda: rbac(reconcilers, kopf=kopf, permissions=permissions)),
            arguments=arguments,
            programs=programs,
            objects=[*policies, *objects],
            on_request=on_request,
        )

    @property
    def label(self) -> str:
        """Its name for clusterctl and for our processes, such as `control-plane-capelin`."""
        return provider_label(self.type, self.name)

    @property
    def namespace(self) -> str:
        """The namespace of its service account."""
        return f"{self.label}-system"

    @property
    def serves_webhooks(self) -> bool:
        """Whether the API server calls its manager, to convert or validate objects."""
        return any(map(is_validation, self.objects)) or any(map(needs_webhook, self.crds))

    @property
    def aggregated_roles(self) -> list[Unstructured]:
        """ClusterRoles that allow users, and Cluster API's core, to use its kinds.

        Empty if its objects contain such roles: then the provider has its own.
        """
        if any(is_aggregated(obj) for obj in self.objects):
            return []
        return aggregated_roles(self.namespace, self.type, self.crds)

    def components(self, namespace: str | None = None) -> list[Unstructured]:
        """The objects of its installation.

        Args:
            namespace: The only namespace whose objects it may read and change: that of its
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


def needs_webhook(definition: Unstructured) -> bool:
    """Whether a CRD has a conversion webhook."""
    return "webhook" in definition["spec"].get("conversion", {})


def is_validation(obj: Unstructured) -> bool:
    """Whether an object configures validating webhooks."""
    return obj["kind"] == "ValidatingWebhookConfiguration"


def _check_validators(kinds: Sequence[Sequence[type[BaseObject]]]) -> None:
    for *others, stored in kinds:
        for kind in others:
            if has_validators(kind):
                version = stored.resource.version
                raise ValueError(
                    f"@validates({kind.__name__}) is not called: {version} of the kind is stored, "
                    f"so write @validates({stored.__name__})"
                )


class _Lazy(Sequence[Unstructured]):
    """A sequence that is built on first access."""

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
