"""Takes the stages of encryption at rest, rewrites stored objects, and checks the KMS plugin."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from capelin.api import Resource
from capelin.client import (
    ApiError,
    Client,
    ClientError,
    ClientOptions,
    Config,
    Conflict,
    NotFound,
    NotServed,
    ResponseTooLarge,
)
from capelin.contract import ConditionSpec
from capelin.controller import Context, ObjectKey

from capelin_control_plane.api import CapelinControlPlane, EncryptionStatus
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.desired.component_files import IDENTITY
from capelin_control_plane.keys.encryption import (
    Goal,
    Keyring,
    PluginKey,
    Ring,
    Stage,
    has_other_plugin_key,
    next_keyring,
    observed_key,
    plugin_key,
    restored_keyring,
    rewrote,
    stage,
    taken_back,
    to_rewrite,
    used_plugin_key,
)
from capelin_control_plane.keys.encryption_keys import EncryptionKeys, store
from capelin_control_plane.operations.engine import Declaration, Engine, Operation, Run, key_of

_PERIOD: Final = timedelta(minutes=1)
"""API servers ask their plugin as often."""
_SOON: Final = timedelta(seconds=10)
_LONGEST: Final = 20.0
_LARGEST: Final = 32 << 20
ENCRYPTION_AT_REST: Final = "EncryptionAtRest"
"""Whether every stored object of the configured resources is encrypted."""
_PAGE: Final = 500
_MOST_OBJECTS: Final = 300_000
_AT_ONCE: Final = 8
_OPTIONS: Final = ClientOptions(qps=100, burst=100)
"""At most 100 objects in a second, so that users keep most of the API servers' time."""
_RETRY: Final = timedelta(seconds=15)
_MESSAGES: Final[Mapping[Stage, str]] = {
    "Distributing": "stage 1 of 4: all API servers get the new key, and read with it",
    "Promoting": "stage 2 of 4: all API servers begin to write with the new key",
    "Rewriting": "stage 3 of 4: all stored objects are rewritten",
    "Dropping": "stage 4 of 4: all API servers lose the old key",
}

_OTHER_PLUGIN_KEY: Final = (
    "the KMS plugin has another key: all stored objects are rewritten with it. Keep the earlier key"
)
_UNHEALTHY: Final = (
    "API servers cannot use the KMS plugin {}, and soon reject writes of encrypted objects: start"
    " it where they run, and read its log"
)
_NO_ANSWER: Final = (
    "no API server answers, which happens if all of them miss the KMS plugin {}: check that it runs"
    " where they run, and read its log"
)


@dataclass(frozen=True, slots=True)
class PluginCheck:
    """The last check of a control plane's plugin."""

    key: str
    begun: datetime
    observed: PluginKey | None = None
    healthy: bool | None = None
    """The report of the last API server that answered. None if none has."""
    answers: bool = True
    """Whether an API server answered. On pods, none does if all of them miss their plugin."""

    @property
    def next(self) -> datetime:
        """When to check again."""
        return self.begun + (_PERIOD if self.healthy is not False and self.answers else _SOON)


class PluginChecks(Engine[PluginCheck]):
    """Checks the KMS plugins of all control planes regularly. API servers are the only state."""

    # At the same time, few: metrics of an API server are large.
    operation = Declaration(
        name="the check of the KMS plugin",
        at_once=2,
        is_check=True,
    )

    def reconcile(
        self, ctx: Context, obj: CapelinControlPlane, name: str, config: Callable[[], Config]
    ) -> PluginCheck:
        """Check the plugin if the last check was a while ago. Returns the last result.

        Args:
            ctx: The context of the reconcile.
            obj: The control plane.
            name: The name of the plugin's key in the keyring.
            config: How to reach its API servers.
        """
        run, now = self.last(key_of(obj)), ctx.now()
        if run is not None and run.result.key != name:
            run = None
        if run is None or (not run.is_running and now >= run.result.next):
            check = PluginCheck(name, now) if run is None else replace(run.result, begun=now)
            run = self.start(ctx, obj, Run(check, now), partial(_check, ctx, check, config()))
        return run.result

    def settled_key(self, key: ObjectKey, now: datetime) -> tuple[str, str] | None:
        """The name of the key in the keyring, and the plugin's key that API servers use for it."""
        run = self.last(key)
        observed = None if run is None else run.result.observed
        digest = None if observed is None else observed.settled(now)
        return None if observed is None or digest is None else (observed.key, digest)


async def _check(ctx: Context, check: PluginCheck, config: Config) -> PluginCheck:
    try:
        async with (
            asyncio.timeout(_LONGEST),
            Client(config, manager="capelin-encryption") as workload,
        ):
            check = replace(check, healthy=await _is_healthy(ctx, workload))
            metrics = await workload.request("GET", "/metrics", max_bytes=_LARGEST)
    except (ClientError, TimeoutError) as error:
        ctx.log.info("the KMS plugin is not known: %s", error)
        return replace(check, answers=False)
    digest = plugin_key(str(metrics), check.key)
    observed = observed_key(check.observed, check.key, digest, ctx.now())
    return replace(check, observed=observed, answers=True)


async def _is_healthy(ctx: Context, workload: Client) -> bool | None:
    try:
        await workload.request("GET", "/readyz/kms-providers", timeout=_LONGEST / 2)
    except NotFound:
        # This API server has not begun to use it.
        return None
    except ApiError as error:
        ctx.log.warning("an API server cannot use its KMS plugin: %s", error)
        return False
    return True


@dataclass(frozen=True, slots=True)
class EncryptionReport:
    """The state of encryption, for the status of a control plane."""

    condition: ConditionSpec | None
    status: EncryptionStatus | None
    next: datetime | None = None
    """When to look again."""
    changing: bool = False
    """Whether stored objects can have different keys now."""


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """A task that rewrites the objects of some resources, and how far it is."""

    resources: tuple[str, ...]
    rings: Mapping[str, Ring]
    """The rings of all API servers when it began."""
    plugin_key: str | None
    """The key of the KMS plugin when it began."""
    count: int = 0
    complete: bool = False


class Encryptions(Engine[_Rewrite]):
    """Takes control planes through the stages of encryption.

    The keyring in the Secret is the only state. A provider that takes over repeats an incomplete
    rewrite: objects that are stored with the new key already are not written again.
    """

    operation = Declaration(
        name="a rewrite",
        excluded_as=Operation.ENCRYPTION,
        condition=ENCRYPTION_AT_REST,
        reason=Reason.REWRITE_FAILED,
        own_reasons=False,
        expected=(ClientError,),
        at_once=4,  # The memory for lists is bounded.
        retry=_RETRY,
    )

    def __init__(self, wake: Callable[[ObjectKey], None], plugins: PluginChecks) -> None:
        super().__init__(wake)
        self._plugins = plugins

    async def reconcile(
        self,
        ctx: Context,
        obj: CapelinControlPlane,
        keys: EncryptionKeys | None,
        config: Callable[[], Config],
        *,
        waiting: str = "",
        restoring: bool = False,
    ) -> EncryptionReport:
        """Take the next stage unless it has to wait, and check the plugin.

        Args:
            ctx: The context of the reconcile.
            obj: The control plane.
            keys: Its keys.
            config: How to reach its API servers.
            waiting: The obstacle of the next stage. Without one, every API server runs with the
                present configuration of these keys.
            restoring: Whether objects of an earlier time come back.
        """
        key = key_of(obj)
        check = None
        used = None if keys is None else used_plugin_key(keys.keyring)
        if used is None:
            self._plugins.forget(key)
        else:
            check = self._plugins.reconcile(ctx, obj, used.name, config)
        if restoring:
            # A rewrite of objects that are replaced must not count for those that come back.
            self.forget(key)
        if keys is not None and restoring and keys.keyring != restored_keyring(keys.keyring):
            keys = await store(ctx.client, obj, keys, restored_keyring(keys.keyring))
        keys, run = await self._advance(ctx, obj, keys, config, settled=not waiting)
        report = _report(keys, run, check, waiting)
        moments = [report.next, check and check.next]
        if keys is not None and keys.problem is not None:
            moments.append(ctx.now() + _RETRY)
        return replace(report, next=min(filter(None, moments), default=None))

    async def _advance(
        self,
        ctx: Context,
        obj: CapelinControlPlane,
        keys: EncryptionKeys | None,
        config: Callable[[], Config],
        *,
        settled: bool,
    ) -> tuple[EncryptionKeys | None, Run[_Rewrite] | None]:
        key = key_of(obj)
        if keys is None or keys.goal is None:
            self.forget(key)
            return keys, None
        keyring, goal = keys.keyring, keys.goal
        run = self.last(key)
        if run is not None and (run.result.rings, run.result.plugin_key) != (
            keyring.rings,
            goal.plugin_key,
        ):
            self.forget(key)
            run = None
        following, pending = keyring, to_rewrite(keyring, goal)
        if (back := taken_back(keyring, goal)) != keyring:
            following = back
        elif not settled:
            return keys, run
        elif run is None or run.result.resources != pending:
            following = next_keyring(keyring, goal)
        elif run.result.complete:
            following = rewrote(keyring, pending, goal)
        if following != keyring:
            self.forget(key)
            before, keys = keys, await store(ctx.client, obj, keys, following)
            _record(ctx, obj, before.keyring, following, goal)
            self.wake(key)
            return keys, None
        if pending and (run is None or (run.retry_at is not None and run.is_due(ctx.now()))):
            failure = None if run is None else run.condition
            rewrite = _Rewrite(pending, keyring.rings, goal.plugin_key)
            run = Run(rewrite, ctx.now(), condition=failure)
            self.start(ctx, obj, run, partial(self._rewrite, key, run, config()))
        return keys, run

    async def _rewrite(self, key: ObjectKey, run: Run[_Rewrite], config: Config) -> _Rewrite:
        async with Client(config, manager="capelin-encryption", options=_OPTIONS) as workload:
            for resource in run.result.resources:
                async for count in rewritten_objects(workload, resource):
                    run.result = replace(run.result, count=run.result.count + count)
                    self.wake(key)
        return replace(run.result, complete=True)


async def rewritten_objects(workload: Client, name: str) -> AsyncGenerator[int]:
    """Have the API server store every object of a resource again. Yields the progress.

    Without a change, it stores only objects that are not stored with the first key. The provider
    reads and sends no content of objects.
    """
    resource = await _resource(workload, name)
    if resource is None:
        return
    # First: the token that continues a list expires within minutes.
    listed = [found async for found in _listed(workload, resource)]
    for first in range(0, len(listed), _PAGE):
        page = listed[first : first + _PAGE]
        queue = iter(page)

        async def work(objects: Iterator[tuple[str, dict[str, str]]] = queue) -> None:
            for path, precondition in objects:
                await _rewrite(workload, path, precondition)

        tasks = [asyncio.create_task(work()) for _ in range(_AT_ONCE)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        yield len(page)


async def _rewrite(workload: Client, path: str, precondition: Mapping[str, str]) -> None:
    # Changed or deleted since the list, it is already stored with the first key.
    with suppress(Conflict, NotFound):
        await workload.request(
            "PATCH",
            path,
            body={"metadata": precondition},
            content_type="application/merge-patch+json",
            accept=_metadata_of("PartialObjectMetadata"),
        )


async def _listed(
    workload: Client, resource: Resource
) -> AsyncGenerator[tuple[str, dict[str, str]]]:
    """The path of each object, and the values that identify its version."""
    token, count = "", 0
    while True:
        page: Any = await workload.request(
            "GET",
            resource.path(),
            parameters={"limit": str(_PAGE), **({"continue": token} if token else {})},
            accept=_metadata_of("PartialObjectMetadataList"),
        )
        count += len(page["items"])
        if count > _MOST_OBJECTS:
            raise ResponseTooLarge(f"{resource.plural} has more than {_MOST_OBJECTS} objects")
        for item in page["items"]:
            metadata = item["metadata"]
            path = resource.path(metadata.get("namespace"), metadata["name"])
            yield path, {key: metadata[key] for key in ("uid", "resourceVersion")}
        token = page["metadata"].get("continue")
        if not token:
            return


async def _resource(workload: Client, name: str) -> Resource | None:
    """A resource such as `widgets.example.com`. None if the workload cluster has no such group.

    Raises:
        NotServed: none of the group's versions has it now. Its objects would lose their key.
    """
    plural, _, group = name.partition(".")
    versions = ["v1"]
    if group:
        try:
            described: Any = await workload.request("GET", f"/apis/{group}")
        except NotServed:
            return None
        listed = (described["preferredVersion"], *described["versions"])
        names = dict.fromkeys(version["version"] for version in listed)
        versions = [f"{group}/{name}" for name in names]
    for version in versions:
        for resource in await workload.resources(version):
            if resource.plural == plural:
                return resource
    raise NotServed(404, "NotFound", f"the workload cluster has the group {group} without {plural}")


def _metadata_of(kind: str) -> str:
    return f"application/json;as={kind};g=meta.k8s.io;v=v1"


def _record(
    ctx: Context, obj: CapelinControlPlane, before: Keyring, after: Keyring, goal: Goal
) -> None:
    """Record events about the start and the end of a change."""
    names = ", ".join(sorted(after.rings.keys() | before.rings.keys()))
    if stage(before, goal) == "Distributing" and before.previous is None:
        what = "disabled" if goal.key is None else f"changed to {goal.key.name}"
        ctx.event(obj, "Normal", "EncryptionChanging", f"encryption of {names} is {what}")
    elif stage(after, goal) is None:
        what = "is off" if goal.key is None else f"uses {goal.key.name} only"
        if has_other_plugin_key(before, goal):
            what = f"uses only the present key of the KMS plugin {goal.key and goal.key.plugin}"
        ctx.event(obj, "Normal", "EncryptionChanged", f"encryption of {names} {what}")


def _report(
    keys: EncryptionKeys | None,
    run: Run[_Rewrite] | None,
    check: PluginCheck | None,
    waiting: str,
) -> EncryptionReport:
    if keys is None:
        return EncryptionReport(None, None)
    keyring, goal = keys.keyring, keys.goal
    current = None if goal is None else stage(keyring, goal)
    writing = [keyring.keys[ring[0]] for ring in keyring.rings.values() if ring[0] in keyring.keys]
    newest = max(writing, key=lambda key: key.created, default=None)
    status = EncryptionStatus(
        key=newest and newest.name,
        provider=newest and newest.provider,
        plugin_key=newest and newest.plugin_key,
        stage=current,
        rewritten=run.result.count if run is not None and current == "Rewriting" else None,
    )
    resources = (goal.resources if goal is not None else frozenset[str]()) or keyring.rings.keys()
    is_encrypted = bool(resources) and not any(
        IDENTITY in keyring.ring(resource) for resource in resources
    )
    reason, message = ENCRYPTION_AT_REST, ""
    suffix = f". Waiting for {waiting}" if waiting else ""
    if keys.problem is not None:
        reason, message = keys.problem.reason, str(keys.problem)
    elif run is not None and run.condition is not None:
        reason, message = run.condition.reason, run.condition.message
    elif check is not None and check.healthy is False:
        plugin = keyring.keys[check.key].plugin
        reason, message = Reason.KMS_PLUGIN_NOT_HEALTHY, _UNHEALTHY.format(plugin)
    elif check is not None and check.healthy and not check.answers:
        plugin = keyring.keys[check.key].plugin
        reason, message = Reason.KMS_PLUGIN_NOT_HEALTHY, _NO_ANSWER.format(plugin)
    elif goal is not None and has_other_plugin_key(keyring, goal):
        reason, message = Reason.ENCRYPTION_CHANGING, _OTHER_PLUGIN_KEY + suffix
    elif current is not None:
        reason, message = Reason.ENCRYPTION_CHANGING, _MESSAGES[current] + suffix
    elif not resources:
        # It is off, and nothing remains to be done.
        return EncryptionReport(None, None)
    next_ = run.retry_at if run is not None and run.retry_at else keys.next
    return EncryptionReport(
        ConditionSpec(ENCRYPTION_AT_REST, "True" if is_encrypted else "False", reason, message),
        status,
        next_,
        changing=keyring.is_changing,
    )
