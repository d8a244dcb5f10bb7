"""Takes control planes through the stages of a rotation of their CAs and keys."""

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from capelin.client import Client, ClientError
from capelin.contract import ConditionSpec, secret_name
from capelin.controller import Context, ObjectKey

from capelin_control_plane.api import CapelinControlPlane
from capelin_control_plane.api.reasons import Reason
from capelin_control_plane.desired.control_plane import (
    ControlPlane,
    InvalidSpecError,
    RotationStage,
    annotated_moment,
    moment_in,
)
from capelin_control_plane.desired.instances import Observed
from capelin_control_plane.desired.schedules import around, is_future, is_older, occurrences
from capelin_control_plane.keys.rotation import (
    PURPOSES,
    Clients,
    Progress,
    authority_name,
    waiting_for,
)
from capelin_control_plane.keys.rotation_clients import (
    NODE_ANNOTATION,
    find_clients,
    machines_of,
    unjoined,
    with_ages_of_machines,
)
from capelin_control_plane.keys.secrets import advance
from capelin_control_plane.operations.engine import Operation, obstacle, waiting_text
from capelin_control_plane.operations.situation import Situation

ROTATE_ANNOTATION: Final = "controlplane.cluster.x-k8s.io/rotate-authorities-before"
"""Its value is a moment. CAs and keys that were created before it are replaced."""
DROP_ANNOTATION: Final = "controlplane.cluster.x-k8s.io/drop-old-authorities-after"
"""Its value is a moment. It confirms that no client needs the old CA then, apart from those that
the API shows. With `force@` before the moment, the provider does not wait for these either."""
ROTATING: Final = "RotatingAuthorities"
_DROP: Final = re.compile(r"(?P<force>force@)?(?P<moment>.+)")
_CLIENT_SECONDS: Final = 10.0
_AGAIN: Final = timedelta(seconds=30)
_MESSAGES: Final[Mapping[RotationStage, tuple[Reason, str]]] = {
    "Trusting": (
        Reason.TRUSTING_AUTHORITIES,
        "stage 1 of 3: all components begin to trust the new CAs and keys",
    ),
    "Issuing": (
        Reason.ISSUING_CERTIFICATES,
        "stage 2 of 3: all components get certificates of the new CAs",
    ),
}


@dataclass(frozen=True, slots=True)
class RotationReport:
    """The state of a rotation."""

    conditions: tuple[ConditionSpec, ...] = ()
    next: datetime | None = None
    """When to look again."""


@dataclass(frozen=True, slots=True)
class Requests:
    """The moments of requested rotations."""

    last: datetime | None
    """The latest one in the past."""
    next: datetime | None
    """The next one in the future."""
    now: datetime

    def includes(self, created: datetime) -> bool:
        """Whether CAs and keys of this age have to be replaced."""
        return self.last is not None and is_older(created, self.last, self.now)


@dataclass(frozen=True, slots=True)
class _Found:
    clients: Clients
    moment: datetime


@dataclass(slots=True)
class Rotations:
    """Takes the next step of a rotation when every component has taken the last one.

    The Secrets are the only state. A step changes them one after the other. The next reconcile
    completes a step that a provider did not complete, before any component uses it.
    """

    wake: Callable[[ObjectKey], None]
    _found: dict[ObjectKey, _Found] = field(default_factory=dict[ObjectKey, _Found])

    async def reconcile(
        self,
        ctx: Context,
        situation: Situation,
        *,
        running: Collection[Operation],
        awake_since: datetime | None = None,
    ) -> RotationReport:
        """Take the next step, unless it has to wait.

        Args:
            ctx: The context of the reconcile.
            situation: The control plane.
            running: The operations in progress.
            awake_since: When it last woke.
        """
        key, obj, desired = situation.key, situation.obj, situation.desired
        progress, now = situation.authorities.progress, desired.now
        if progress.stage is None:
            self.forget(key)
        try:
            requests = rotation_requests(obj, now)
            if progress.stage is None and not requests.includes(progress.created):
                return RotationReport(next=requests.next)
            drop, force = requested_drop(obj)
            report = _delayed(progress, desired, situation.observed, running)
        except InvalidSpecError as error:
            return RotationReport((_refused(str(error)),))
        if drop is not None and drop < progress.created and not is_future(progress.created, now):
            drop = None  # It was about an earlier rotation.
        confirmed = drop is not None and drop <= now
        if report is None and progress.stage == "Waiting" and not (confirmed and force):
            report = await self._wait(ctx, situation, confirmed=confirmed, awake_since=awake_since)
        if report is not None:
            return report
        for purpose in PURPOSES:
            await advance(ctx.client, obj, desired, purpose, step=progress.step)
        _record(ctx, obj, progress.stage)
        self.forget(key)
        self.wake(key)
        return RotationReport((_condition(progress.stage),))

    def forget(self, key: ObjectKey) -> None:
        """Forget the clients of a control plane."""
        self._found.pop(key, None)

    async def _wait(
        self,
        ctx: Context,
        situation: Situation,
        *,
        confirmed: bool,
        awake_since: datetime | None,
    ) -> RotationReport | None:
        """The clients that still need the old CAs. None if they can be dropped."""
        key, desired, authorities = situation.key, situation.desired, situation.authorities
        now = desired.now
        since = authorities.progress.since or now
        found = self._found.get(key)
        if found is None or now - found.moment >= _AGAIN:
            try:
                async with (
                    asyncio.timeout(_CLIENT_SECONDS),
                    Client(situation.config(), manager="capelin-rotation") as workload,
                ):
                    clients = await find_clients(workload, authorities)
            except (ClientError, TimeoutError) as error:
                reason = str(error) or f"the API took more than {_CLIENT_SECONDS:g} s"
                waiting = f"the list of clients: {reason}"
                return RotationReport((_condition("Waiting", waiting),), now + _AGAIN)
            machines = await machines_of(ctx.client, desired.namespace, desired.cluster)
            nodes = with_ages_of_machines(clients.nodes, machines)
            waiting = unjoined(machines, since)
            found = self._found[key] = _Found(replace(clients, nodes=nodes, machines=waiting), now)
        name = authority_name(authorities.ca.certificate_pem)
        waiting = waiting_for(
            found.clients,
            authority=name,
            since=since,
            now=now,
            confirmed=confirmed,
            awake_since=awake_since,
        )
        if not waiting:
            return None
        text = "; ".join(waiting)
        if any("kubelet" in line for line in waiting):
            text += f". Their annotation {NODE_ANNOTATION}={name} confirms a new certificate"
        return RotationReport((_condition("Waiting", text),), now + _AGAIN)


def is_settled(observed: Observed) -> bool:
    """Whether every component runs with the present CAs, and no other one still ends."""
    return (
        observed.answers
        and observed.complete
        and observed.blocked is None
        and all(status.ready and status.current for status in observed.statuses)
        and not observed.stopping
    )


def rotation_requests(obj: CapelinControlPlane, now: datetime) -> Requests:
    """The moments of the schedule and the annotation around now.

    Raises:
        InvalidSpecError: the schedule, the time zone or the annotation cannot be read.
    """
    rotation, field_ = obj.spec.certificates.rotation, "spec.certificates.rotation"
    moments = [annotated_moment(obj, ROTATE_ANNOTATION)]
    if rotation is not None:
        moments += occurrences(
            rotation.schedule,
            rotation.time_zone,
            now,
            field=f"{field_}.schedule",
            zone_field=f"{field_}.timeZone",
        )
    return Requests(*around(moments, now), now)


def requested_drop(obj: CapelinControlPlane) -> tuple[datetime | None, bool]:
    """When the old CAs are dropped, and whether even if clients still need them.

    Raises:
        InvalidSpecError: the annotation is not a moment.
    """
    match = _DROP.fullmatch(obj.metadata.annotations.get(DROP_ANNOTATION, ""))
    if match is None:
        return None, False
    return moment_in(DROP_ANNOTATION, match["moment"]), match["force"] is not None


def _delayed(
    progress: Progress, desired: ControlPlane, observed: Observed, running: Collection[Operation]
) -> RotationReport | None:
    """Why the next step has to wait. None if nothing prevents it."""
    if progress.users:
        names = ", ".join(secret_name(desired.cluster, purpose) for purpose in progress.users)
        message = f"Secret {names} belongs to a user, and the provider does not change it"
        return RotationReport((_refused(f"{message}: remove the annotation"),))
    requested = Operation.CLIENTS if progress.stage == "Waiting" else Operation.ROTATION
    readiness = "" if is_settled(observed) else "every component to be ready"
    text = waiting_text(obstacle(requested, running), readiness)
    return RotationReport((_condition(progress.stage, text),)) if text else None


def _refused(message: str) -> ConditionSpec:
    return ConditionSpec(ROTATING, "False", Reason.ROTATION_REFUSED, message)


def _condition(stage: RotationStage | None, waiting: str = "") -> ConditionSpec:
    """The condition of a stage that waits, or of the next one if it waits for nothing."""
    if stage == "Waiting":
        text = f"Waiting for {waiting}" if waiting else "Nothing needs them: they are dropped"
        message = f"stage 3 of 3: the old CAs and keys stay trusted. {text}"
        return ConditionSpec(ROTATING, "True", Reason.WAITING_FOR_CLIENTS, message)
    if stage is None and waiting:
        message = f"waiting for {waiting}"
        return ConditionSpec(ROTATING, "False", Reason.ROTATION_POSTPONED, message)
    reason, message = _MESSAGES[stage or "Trusting"]
    message += f". Waiting for {waiting}" if waiting else ""
    return ConditionSpec(ROTATING, "True", reason, message)


def _record(ctx: Context, obj: CapelinControlPlane, stage: RotationStage | None) -> None:
    """Record events about the start and the end of a rotation."""
    if stage is None:
        message = "all components begin to trust new CAs and a new service account key"
        ctx.event(obj, "Normal", "RotationStarted", message)
    elif stage == "Issuing":
        message = "all components have certificates of the new CAs. Clients follow"
        ctx.event(obj, "Normal", "RotationWaits", message)
    elif stage == "Waiting":
        ctx.event(obj, "Normal", "RotationCompleted", "the old CAs and keys are dropped")
