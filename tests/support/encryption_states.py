"""States of encryption at rest, from the view of a user."""

from collections.abc import Awaitable, Callable

from capelin.contract import find_condition
from capelin_control_plane.keys.encryption_keys import ENCRYPTION_ANNOTATION

from tests.support.control_planes import ControlPlane


async def key_name(control_plane: ControlPlane) -> str | None:
    """The name of the key that API servers write with."""
    status = (await control_plane.get()).status
    return status and status.encryption and status.encryption.key


def is_encrypted(
    control_plane: ControlPlane,
    settled: Callable[[], Awaitable[bool]],
    provider: str,
    *others: str | None,
) -> Callable[[], Awaitable[bool]]:
    """Whether everything is encrypted with a key other than these, and nothing remains to do."""

    async def check() -> bool:
        mine = await control_plane.get()
        status = mine.status
        if status is None or status.encryption is None or not await settled():
            return False
        condition = find_condition(status.conditions, "EncryptionAtRest")
        return (
            status.observed_generation == mine.metadata.generation
            and status.encryption.provider == provider
            and status.encryption.stage is None
            and status.encryption.key not in others
            and condition is not None
            and condition.status == "True"
        )

    return check


def is_plain(
    control_plane: ControlPlane, settled: Callable[[], Awaitable[bool]]
) -> Callable[[], Awaitable[bool]]:
    """Whether nothing is encrypted, and nothing remains to do."""

    async def check() -> bool:
        mine = await control_plane.get()
        status = mine.status
        return (
            status is not None
            and find_condition(status.conditions, "EncryptionAtRest") is None
            and ENCRYPTION_ANNOTATION not in mine.metadata.annotations
            and await settled()
        )

    return check
