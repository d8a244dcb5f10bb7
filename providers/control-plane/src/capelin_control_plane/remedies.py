"""What to do about what only the world can tell: from a complaint to the field to mend."""

import errno
from collections.abc import Mapping

from capelin_control_plane.backends import Problem
from capelin_control_plane.desired import FIELDS
from capelin_control_plane.plan import Component


def remedy(component: Component, complaint: str, flags: Mapping[str, str]) -> str:
    """What to do about how a component ended; nothing where nobody can tell.

    `flags` are those that the user gave it.
    """
    words = complaint.replace("=", " ").replace('"', " ").replace(",", " ").split()
    for flag in sorted(flags):
        if {f"--{flag}", f"-{flag}"} & {word.rstrip(":") for word in words}:
            return f"mend spec.{FIELDS[component]}.extraArgs[{flag}]"
    said = complaint.lower()
    if "address already in use" in said:
        return "stop what else listens there"
    if "no space left on device" in said:
        return "make room on the disk of the provider's --state-folder"
    return ""


def unusable(error: OSError) -> Problem:
    """Why the machine does not let us keep what we have to."""
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return Problem(
            "DiskFull",
            f"{what}; make room on the disk of the provider's --state-folder. What runs goes on",
        )
    return Problem(
        "StateFolderNotUsable",
        f"{what}; see to it that the provider can write to its --state-folder. What runs goes on",
    )
