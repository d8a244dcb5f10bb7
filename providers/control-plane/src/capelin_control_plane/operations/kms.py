"""Asks API servers about their KMS plugin, in tasks of their own."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from capelin.client import ApiError, Client, ClientError, Config, NotFound
from capelin.controller import Context, ObjectKey

from capelin_control_plane.keys.kms import PluginKey, observed_key, plugin_key
from capelin_control_plane.operations.tasks import Tasks

_PERIOD: Final = timedelta(minutes=1)
"""API servers ask their plugin as often."""
_SOON: Final = timedelta(seconds=10)
_LONGEST: Final = 20.0
_LARGEST: Final = 32 << 20
_MOST_CHECKS: Final = 2
"""At the same time: metrics of an API server are large."""


@dataclass(slots=True)
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


class PluginChecks(Tasks[PluginCheck]):
    """Checks the KMS plugins of all control planes regularly. API servers are the only state."""

    def __init__(self, wake: Callable[[ObjectKey], None]) -> None:
        super().__init__(wake)
        self._slots = asyncio.Semaphore(_MOST_CHECKS)

    def reconcile(
        self, ctx: Context, key: ObjectKey, name: str, config: Callable[[], Config]
    ) -> PluginCheck:
        """Check the plugin if the last check was a while ago. Returns the last result.

        Args:
            ctx: The context of the reconcile.
            key: The control plane.
            name: The name of the plugin's key in the keyring.
            config: How to reach its API servers.
        """
        now, last = ctx.now(), self.state(key)
        if last is not None and last.key != name:
            last = None
        if last is None or (not self.is_running(key) and now >= last.next):
            last = PluginCheck(name, now) if last is None else replace(last, begun=now)
            self.start(key, last, self._check(ctx, key, last, config()))
        return last

    def settled_key(self, key: ObjectKey, now: datetime) -> tuple[str, str] | None:
        """The name of the key in the keyring, and the plugin's key that API servers use for it."""
        check = self.state(key)
        observed = None if check is None else check.observed
        digest = None if observed is None else observed.settled(now)
        return None if observed is None or digest is None else (observed.key, digest)

    async def _check(
        self, ctx: Context, key: ObjectKey, check: PluginCheck, config: Config
    ) -> None:
        before = replace(check)
        try:
            async with (
                self._slots,
                asyncio.timeout(_LONGEST),
                Client(config, manager="capelin-encryption") as workload,
            ):
                check.healthy = await _is_healthy(ctx, workload)
                metrics = await workload.request("GET", "/metrics", max_bytes=_LARGEST)
            digest = plugin_key(str(metrics), check.key)
            check.observed = observed_key(check.observed, check.key, digest, ctx.now())
            check.answers = True
        except (ClientError, TimeoutError) as error:
            check.answers = False
            ctx.log.info("the KMS plugin of %s is not known: %s", key, error)
        except Exception:
            ctx.log.exception("the check of the KMS plugin of %s failed", key)
        if check != before:
            self.wake(key)


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
