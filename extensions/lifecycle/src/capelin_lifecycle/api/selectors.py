"""Which Clusters and which upgrades a policy is for."""

from typing import Annotated, Literal

from annotated_types import MaxLen
from capelin.api import (
    Model,
    rule,
)

from capelin_lifecycle.api.names import (
    LabelKey,
    VersionRange,
)


class Requirement(Model):
    """A requirement of a label selector."""

    key: LabelKey
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the label's value relates to the values."""
    values: Annotated[list[Annotated[str, MaxLen(63)]], MaxLen(32)] = []
    """The values, for `In` and `NotIn`."""

    rules = (
        rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "In and NotIn need values, and Exists and DoesNotExist take none",
        ),
    )


class Selector(Model):
    """Selects by labels. An empty one selects everything."""

    match_labels: Annotated[dict[str, Annotated[str, MaxLen(63)]], MaxLen(32)] = {}
    """Labels that have to have these values."""
    match_expressions: Annotated[list[Requirement], MaxLen(32)] = []
    """Further requirements."""


class Versions(Model):
    """Which upgrades a policy is for."""

    from_: VersionRange | None = None
    """Versions that an upgrade starts from. Not known to the hooks after an upgrade."""
    to: VersionRange | None = None
    """Versions that an upgrade leads to, or has reached."""
