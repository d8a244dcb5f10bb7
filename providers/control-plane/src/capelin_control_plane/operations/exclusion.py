"""Which operation of a control plane waits for which, and which ends which. Pure.

The table has a row for each operation in progress and a column for each requested one. Without
both, a new operation cannot be imported. `docs/concepts/operations.md` has the same table.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final

from capelin_control_plane.desired.control_plane import ControlPlane
from capelin_control_plane.desired.instances import Observed
from capelin_control_plane.keys.rotation import Progress, is_rolling


class Operation(StrEnum):
    """An operation, in the words of a condition: `waiting for the end of ...`."""

    ROTATION = "stages 1 and 2 of a rotation of CAs"
    CLIENTS = "stage 3 of a rotation of CAs"
    ENCRYPTION = "a change of encryption at rest"
    REWRITE = "a rewrite with another key of the KMS plugin"
    ROLLOUT = "a rollout of API servers"
    MEMBERS = "a change of etcd's members"
    BACKUP = "a backup"
    SPACE = "a defragmentation of etcd"
    RESTORE = "a restore"
    SLEEP = "a sleep"
    MOVE = "a move"
    PAUSE = "a pause"
    DELETION = "a deletion"


class Rule(StrEnum):
    """The effect of an operation in progress on a requested one."""

    PARALLEL = "runs at the same time"
    WAITS = "waits"
    ENDS = "ends it"
    """The one in progress stops. It continues or is repeated later, if it is still needed."""
    JOINS = "joins it"


_RULES: Final = {"=": Rule.PARALLEL, "w": Rule.WAITS, "e": Rule.ENDS, "+": Rule.JOINS}
_TABLE: Final = """
            ROTATION CLIENTS ENCRYPTION REWRITE ROLLOUT MEMBERS BACKUP SPACE RESTORE SLEEP MOVE \
PAUSE DELETION
ROTATION    +        +       w          w       =       =       =      =     =       =     w    e e
CLIENTS     w        +       =          =       =       =       =      =     =       =     =    e e
ENCRYPTION  w        w       +          w       =       =       =      =     =       =     w    e e
REWRITE     =        =       e          +       =       =       =      =     e       e     e    e =
ROLLOUT     w        w       w          w       +       =       =      w     =       =     w    e e
MEMBERS     w        w       =          =       =       +       =      w     =       =     w    e e
BACKUP      e        =       e          =       =       =       +      w     =       e     e    e =
SPACE       =        =       =          =       =       =       w      +     =       e     e    e =
RESTORE     w        w       w          w       =       =       =      =     +       w     w    e e
SLEEP       w        w       w          w       w       w       w      w     e       +     w    e =
MOVE        w        w       w          w       =       =       =      =     e       e     +    = e
PAUSE       w        w       w          w       w       w       w      w     w       w     =    + w
DELETION    w        w       w          w       w       w       w      w     w       =     w    e +
"""


def read_table(table: str) -> Mapping[tuple[Operation, Operation], Rule]:
    """The rules of a table, by the operation in progress and the requested one.

    Raises:
        ValueError: an operation has no row or no column.
    """
    header, *rows = (line.split() for line in table.strip().splitlines())
    names = [operation.name for operation in Operation]
    if header != names or [row[0] for row in rows] != names:
        raise ValueError(f"the table has to have a row and a column for each of {names}")
    return {
        (Operation[name], requested): _RULES[cell]
        for name, *cells in rows
        for requested, cell in zip(Operation, cells, strict=True)
    }


RULES: Final = read_table(_TABLE)
_ORDER: Final = tuple(Operation)


def obstacle(requested: Operation, running: Collection[Operation]) -> Operation | None:
    """The operation whose end a requested one waits for. None if it may take its next step.

    Of two in progress that would wait for each other, the first one of `Operation` continues.
    """
    for other in _ORDER:
        if other not in running or RULES[other, requested] is not Rule.WAITS:
            continue
        is_mutual = requested in running and RULES[requested, other] is Rule.WAITS
        if not is_mutual or _ORDER.index(other) < _ORDER.index(requested):
            return other
    return None


def waiting_text(operation: Operation | None, readiness: str = "") -> str:
    """The obstacle in the words of a condition: an operation, or a component that is not ready."""
    return readiness if operation is None else f"the end of {operation}"


def in_progress(
    desired: ControlPlane, observed: Observed, *, is_moving: bool = False
) -> frozenset[Operation]:
    """The operations that the state of a control plane shows. Others have a task."""
    servers, replaced = observed.of("kube-apiserver"), observed.stopping
    is_rolled_out = (
        len(servers) == desired.replicas
        and all(server.current for server in servers)
        and not any("kube-apiserver" in name for name in replaced)
    )
    is_resized = observed.voters in {0, desired.etcd_replicas} and not observed.losses
    found = {
        Operation.ROTATION: is_rolling(desired.rotation),
        Operation.CLIENTS: Progress(desired.rotation).stage == "Waiting",
        Operation.ENCRYPTION: desired.encryption.changing,
        Operation.ROLLOUT: not (is_rolled_out or desired.asleep),
        Operation.MEMBERS: not desired.asleep
        and (not is_resized or (is_rolled_out and not observed.complete)),
        Operation.RESTORE: (desired.restore, observed.restore) != (None, None),
        Operation.SLEEP: desired.asleep,
        Operation.MOVE: is_moving,
    }
    return frozenset(operation for operation, is_running in found.items() if is_running)
