"""The result of one rule about one object."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from capelin_cli.explain.facts import Facts, Observation, Subject
from capelin_cli.explain.model import Cause, Reference

YOU: Final = "you"


@dataclass(frozen=True, slots=True)
class Finding:
    """Why an object is not as desired."""

    cause: Cause
    """The rule's name, if no other object explains more."""
    text: str
    responsible: str
    evidence: str = ""
    since: datetime | None = None
    command: str = ""
    about: Reference | None = None
    """The object that causes it, if that is another one."""
    because: Sequence[Reference] = ()
    """Objects that may explain more."""


Rule = Callable[[Subject, Facts], Iterable[Finding]]


def reported(
    observed: Observation,
    cause: Cause,
    responsible: str,
    *,
    text: str = "",
    command: str = "",
    about: Reference | None = None,
    because: Sequence[Reference] = (),
) -> Finding:
    """A finding whose evidence is a condition or an event."""
    return Finding(
        cause,
        text or observed.text,
        responsible,
        observed.evidence,
        observed.since,
        command,
        about,
        because,
    )


def waits(reference: Reference, responsible: str, observed: Observation | None) -> Finding:
    """An object waits for another one, which may explain more."""
    return Finding(
        "Waits",
        observed.text if observed else f"{reference} is not as desired",
        responsible,
        observed.evidence if observed else "",
        observed.since if observed else None,
        describe(reference),
        because=[reference],
    )


def describe(reference: Reference) -> str:
    """The command that shows an object with its events."""
    return f"kubectl describe {reference.words}"
