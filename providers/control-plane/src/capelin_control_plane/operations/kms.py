"""Asks API servers about their KMS plugin."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from capelin.client import ApiError, Client, ClientError, Config, NotFound
from capelin.controller import Context, ObjectKey

from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.keys.kms import PluginKey, observed_key, plugin_key
from capelin_control_plane.operations.engine import Declaration, Engine, Run, key_of

_PERIOD: Final = timedelta(minutes=1)
"""API servers ask their plugin as often."""
_SOON: Final = timedelta(seconds=10)
_LONGEST: Final = 20.0
_LARGEST: Final = 32 << 20


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
