"""The shape of a contract: rules as data, each with the place that states it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Generation = Literal["v1beta1", "v1beta2"]
"""The contract versions that core understands."""

BOOK = "https://cluster-api.sigs.k8s.io"
"""The Cluster API book, whose pages state most rules."""

PROPOSALS = "https://github.com/kubernetes-sigs/cluster-api/blob/main/docs/proposals"
"""Where the proposals are, which state a few."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field that a rule asks for, and where the older generation of the contract has it."""

    path: str
    type: str
    v1beta1: str = ""
    """Its path there, if that is another."""


@dataclass(frozen=True, slots=True)
class ContractRule:
    """One thing that a contract asks for."""

    id: str
    """The contract's name, `/`, and the rule's own: `control-plane/scope`."""
    title: str
    heading: str
    """Under which heading of the document it stands."""
    applies_to: str
    """What has to follow it."""
    says: str
    """What it asks for."""
    mandatory: bool = False
    mandatory_if: str = ""
    """When a rule that is not mandatory becomes so."""
    fields: tuple[Field, ...] = ()
    words: tuple[str, ...] = ()
    """The labels, annotations and other names that it is about."""
    generations: tuple[Generation, ...] = ("v1beta1", "v1beta2")
    document: str = ""
    """The page that states it, where that is another than the contract's."""
    nth: int = 1
    """Which of the headings with these words, where the page has several."""


@dataclass(frozen=True, slots=True)
class Contract:
    """The rules for one kind of thing that Cluster API works with."""

    name: str
    title: str
    document: str
    """The page that states it."""
    rules: tuple[ContractRule, ...]

    def __iter__(self) -> Iterator[ContractRule]:
        return iter(self.rules)

    def __getitem__(self, name: str) -> ContractRule:
        """The rule of that name, with or without the contract's in front."""
        wanted = f"{self.name}/{name.removeprefix(f'{self.name}/')}"
        for rule in self.rules:
            if rule.id == wanted:
                return rule
        raise KeyError(wanted)

    def mandatory(self) -> tuple[ContractRule, ...]:
        """What everybody has to follow."""
        return tuple(rule for rule in self.rules if rule.mandatory)

    def source(self, rule: ContractRule) -> str:
        """Where a rule is stated: the page and the heading on it."""
        repeated = f"-{rule.nth - 1}" if rule.nth > 1 else ""
        return f"{rule.document or self.document}#{_anchor(rule.heading)}{repeated}"


def _anchor(heading: str) -> str:
    """A heading as the book makes an anchor of it."""
    return re.sub(r"[^\w-]", "", re.sub(r"\s", "-", heading.lower()))
