"""Has Cluster API discover the handlers that policies need, and stores the policies."""

from collections.abc import Iterable
from functools import partial
from typing import Final

from capelin.api import Unstructured
from capelin.api.capi import ExtensionConfig
from capelin.api.core import ConfigMap
from capelin.client import ClientError
from capelin.controller import Context, Permission

from capelin_lifecycle.api.names import LIFECYCLE_HOOKS
from capelin_lifecycle.policies.memory import CONFIG_MAP, KEY, stored_text, to_text
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.store import Store

NAME: Final = "lifecycle"
"""The usual name of the extension's ExtensionConfig."""
ANNOTATION: Final = "runtime.capelin.cluster.x-k8s.io/discovery-requested"
PERMISSIONS: Final = (
    Permission("runtime.cluster.x-k8s.io", ("extensionconfigs",), ("get", "patch"), (NAME,)),
    Permission("", ("configmaps",), ("get", "patch"), (CONFIG_MAP,)),
)
_CA_SOURCE: Final = "runtime.cluster.x-k8s.io/inject-ca-from-secret"
_SOON: Final = 3.0
_LATER: Final = 60.0


TOPOLOGY_HANDLERS: Final = {
    "GeneratePatches": "generate-patches-v1",
    "DiscoverVariables": "discover-variables-v1",
    "ValidateTopology": "validate-topology-v1",
    "GenerateUpgradePlan": "generate-upgrade-plan-v1",
}
"""Handlers that ClusterClasses name. Other Clusters never use them, so they are always reported.

A handler's name has a version: another way to compute patches gets another handler, since it would
roll out machines.
"""


def handler_name(hook: str, *, blocks: bool) -> str:
    """The name of a hook's gate or notice: `before-cluster-upgrade-gate`."""
    step = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in hook)
    return f"{step.removeprefix('-')}-{'gate' if blocks else 'notice'}"


def handler_of(policy: KnownPolicy) -> str | None:
    """The handler that Cluster API has to call for a policy. None if ClusterClasses name it."""
    if policy.spec.hook not in LIFECYCLE_HOOKS or policy.spec.suspend:
        return None
    return handler_name(policy.spec.hook, blocks=policy.blocks)


def needed_handlers(policies: Iterable[KnownPolicy]) -> frozenset[str]:
    """The handlers that discovery is to report for these policies."""
    names = {name for policy in policies if (name := handler_of(policy)) is not None}
    return frozenset({*names, *TOPOLOGY_HANDLERS.values()})


EVERY_GATE: Final = frozenset(
    {*(handler_name(hook, blocks=True) for hook in LIFECYCLE_HOOKS), *TOPOLOGY_HANDLERS.values()}
)
"""The handlers that discovery reports while the policies are not known."""


class Registration:
    """Touches the extension's own ExtensionConfig until Cluster API has the right handlers.

    Cluster API discovers when the ExtensionConfig changes. It may ask a replica that does not know
    the newest policy yet, so the result is compared, and the ExtensionConfig touched again.
    """

    def __init__(
        self,
        store: Store,
        extension_config: str,
        namespace: str,
        others: Iterable[str] = (),
    ) -> None:
        """Names of handlers that no policy needs are in `others`."""
        self._store = store
        self._others = frozenset(others)
        self._name = extension_config
        self._namespace = namespace

    async def keep(self, ctx: Context) -> None:
        """Compare and store until cancelled."""
        await self._store.repeat(partial(self._keep, ctx))

    async def _keep(self, ctx: Context) -> float:
        if self._store.knows_policies:
            try:
                await self._remember(ctx)
                return _SOON if await self.register(ctx) else _LATER
            except ClientError as error:
                ctx.log.warning("Cannot update the registration: %s", error)
        return _SOON

    async def register(self, ctx: Context) -> bool:
        """Compare discovered and needed handlers. Returns whether to check again soon."""
        config = await ctx.client.find(ExtensionConfig, self._name)
        if config is None or config.metadata.deletion_timestamp is not None:
            self._store.discover(frozenset())
            return True
        if patch := namespace_patch(config, self._namespace):
            ctx.log.info("The ExtensionConfig gets the namespace %s", self._namespace)
            await ctx.client.patch(ExtensionConfig, self._name, None, patch)
            return True
        known = frozenset(handler.name.partition(".")[0] for handler in config.status.handlers)
        self._store.discover(known)
        if known == needed_handlers(self._store.policies()) | self._others:
            return False
        if config.status.conditions:
            ctx.log.info("Asking Cluster API to discover the handlers again")
            annotations = {ANNOTATION: ctx.now().isoformat()}
            await ctx.apply_metadata(config, annotations=annotations)
        return True

    async def _remember(self, ctx: Context) -> None:
        """Store the selectors of the policies in the ConfigMap that the installation creates."""
        found = await ctx.client.find(ConfigMap, CONFIG_MAP, self._namespace)
        text = to_text(self._store.policies())
        if found is not None and stored_text(found) != text:
            await ctx.client.patch(ConfigMap, CONFIG_MAP, self._namespace, {"data": {KEY: text}})


def namespace_patch(config: ExtensionConfig, namespace: str) -> Unstructured | None:
    """Correct the namespace in an ExtensionConfig, if it names another one.

    `clusterctl init --target-namespace` moves the Service and leaves the ExtensionConfig as it is.
    """
    service = config.spec.client_config.service
    if service is None:
        return None
    patch: Unstructured = {}
    if service.namespace != namespace:
        patch["spec"] = {"clientConfig": {"service": {"namespace": namespace}}}
    secret = config.metadata.annotations.get(_CA_SOURCE, "")
    of, _, name = secret.partition("/")
    if name and of != namespace:
        patch["metadata"] = {"annotations": {_CA_SOURCE: f"{namespace}/{name}"}}
    return patch or None
