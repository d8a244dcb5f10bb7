"""Parses versions of Kubernetes, and decides which of them a cluster can have."""

from collections.abc import Sequence

from capelin.contract import upgrade_problem
from capelin.errors import InvalidInputError
from capelin.versions import Version
from capelin_embedded.management import upgrades_of


def parse_version(text: str, known: Sequence[str] = ()) -> str:
    """The version that a user means: `v1.36.3`, `1.36.3`, or the newest known `1.36`, `latest`."""
    newest_first = sorted(known, key=Version.parse, reverse=True)
    if text == "latest" and newest_first:
        return newest_first[0]
    for version in newest_first:
        if f"v{text.removeprefix('v')}" in {version, version.rpartition(".")[0]}:
            return version
    if known:
        raise InvalidInputError(
            f"{text} is not a Kubernetes version that Capelin can get.",
            reason=f"Known: {', '.join(known)}.",
            hint="Choose one of them (see capelin versions).",
        )
    try:
        return str(Version.parse(text))
    except ValueError:
        raise InvalidInputError(
            f"{text!r} is not a version of Kubernetes.",
            reason="A version has three numbers after a v.",
            hint="Write it as v1.36.3.",
        ) from None


def next_version(current: str, known: Sequence[str]) -> str:
    """The default target of an upgrade: the newest of the next minor version, or of the same."""
    if not known:
        raise InvalidInputError(
            "Capelin does not know which version comes next.",
            reason="The cluster's control plane is another provider's.",
            hint="Name the version, such as v1.36.3.",
        )
    possible = upgrades_of(current, known)
    if not possible:
        raise InvalidInputError(
            f"The cluster runs {current} already.",
            reason=f"Capelin supports no version after {current}.",
            hint="See capelin versions.",
        )
    return possible[-1]


def check_upgrade(current: str, desired: str, known: Sequence[str] = ()) -> None:
    """Reject an upgrade that Kubernetes does not support."""
    problem = upgrade_problem(current, desired)
    if problem is not None:
        possible = upgrades_of(current, known) if known else ()
        hint = f"Capelin supports no version after {current}." if known else "Name a later version."
        if possible:
            hint = f"It can be upgraded to {', '.join(possible)}."
        raise InvalidInputError(
            f"The cluster cannot be upgraded from {current} to {desired}.",
            # Versions keep their small v.
            reason=f"{problem if problem.startswith('v') else problem[:1].upper() + problem[1:]}.",
            hint=hint,
        )
