"""Plain kopf handlers in a manager, with its reconcilers or without any.

kopf works as usual: it keeps its state in annotations and finalizers of the kinds that have such
handlers, retries handlers that fail, and posts events. The manager adds its login, lease, metrics
and log, and starts kopf again if it ends.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import kopf

from capelin.api import Resource
from capelin.client import Client, Config
from capelin.controller.diagnostics import Metrics
from capelin.controller.kopf_thread import KopfThread, quiet_settings
from capelin.controller.reconciler import Permission

_GRACE: Final = 10.0
# kopf has no public way to list the handlers of a registry.
_PATCH: Final = ("_changing", "_spawning")
_WATCHES: Final = ("_indexing", "_watching", *_PATCH)
_ADMISSION: Final = "_webhooks"


class Handled(NamedTuple):
    """A kind with kopf handlers."""

    resource: Resource
    patches: bool
    """Whether kopf keeps state in its objects."""


class KopfHandlers:
    """Runs the handlers of a registry while the manager leads."""

    def __init__(
        self,
        registry: kopf.OperatorRegistry,
        config: Config,
        metrics: Metrics,
        *,
        connect: Callable[[], Client],
        namespace: str | None = None,
    ) -> None:
        """Start without kopf.

        Args:
            registry: The handlers.
            config: The API server, and the credentials.
            metrics: Count the requests.
            connect: Creates the client that handlers have in `memo.client`.
            namespace: The only namespace to watch. Default: all.

        Raises:
            ValueError: A handler does not name its kind, or a manager cannot run it.
        """
        self.resources = [handled.resource for handled in handled_kinds(registry)]
        self.missing = ""
        """Why kinds cannot be watched yet."""
        self._registry = registry
        self._kopf = KopfThread(config, metrics, self.resources, namespace=namespace)
        self._metrics, self._connect = metrics, connect

    async def run(self) -> None:
        """Run until cancelled. After a WatchLostError, run it again.

        Raises:
            WatchLostError: kopf has ended.
        """
        registry = kopf.OperatorRegistry()
        memo = kopf.Memo(metrics=self._metrics.registry)
        client = self._connect()

        async def open_client(**_: Any) -> None:
            memo.client = await client.__aenter__()

        async def close_client(**_: Any) -> None:
            await client.__aexit__(None, None, None)

        # Before the handlers of others for the start.
        kopf.on.startup(registry=registry, id="capelin-client")(open_client)
        for part in (*_WATCHES, "_activities"):
            for handler in _handlers(self._registry, part):
                getattr(registry, part).append(handler)
        kopf.on.cleanup(registry=registry, id="capelin-client")(close_client)
        await self._kopf.run(registry, quiet_settings(), memo=memo, grace=_GRACE)


def handled_kinds(registry: kopf.OperatorRegistry) -> list[Handled]:
    """The kinds that have handlers.

    Raises:
        ValueError: A handler does not name its kind, or a manager cannot run it.
    """
    patches: defaultdict[Resource, bool] = defaultdict(bool)
    for part in _WATCHES:
        for handler in _handlers(registry, part):
            patches[_resource(handler)] |= part in _PATCH
    for handler in _handlers(registry, _ADMISSION):
        raise ValueError(
            f"{handler.id} is an admission handler of kopf, which a manager does not serve: "
            "write a function with @validates, or a ValidatingAdmissionPolicy"
        )
    return [Handled(resource, patched) for resource, patched in patches.items()]


def kopf_permissions(registry: kopf.OperatorRegistry) -> Iterator[Permission]:
    """The permissions that kopf needs for the kinds with handlers.

    Raises:
        ValueError: A handler does not name its kind, or a manager cannot run it.
    """
    for resource, patches in handled_kinds(registry):
        group, plural = resource.group, resource.plural
        yield Permission(group, (plural,), ("get", "list", "watch"))
        if patches:
            yield Permission(group, (plural, f"{plural}/status"), ("patch",))
    yield Permission("", ("events",), ("create",))


def _resource(handler: Any) -> Resource:
    selector = handler.selector
    plural = selector.plural or selector.any_name
    if selector.group is None or not selector.version or not isinstance(plural, str):
        raise ValueError(
            f"the kopf handler {handler.id} does not name its kind: write the group, the version "
            'and the plural, such as @kopf.on.create("cluster.x-k8s.io", "v1beta2", "clusters")'
        )
    return Resource(selector.group, selector.version, plural, plural)


def _handlers(registry: kopf.OperatorRegistry, part: str) -> Sequence[Any]:
    return getattr(registry, part).get_all_handlers()
