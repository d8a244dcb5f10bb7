"""A rule of a contract: a check whose docstring states the requirement, its source and the fix."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import cleandoc
from typing import Any, Final, Generic, Literal, TypeVar, get_args

Contract = Literal[
    "control-plane", "infra-cluster", "infra-machine", "machine-pool", "bootstrap", "clusterctl"
]
"""A contract of Cluster API between its core and providers."""

CONTRACTS: Final[tuple[Contract, ...]] = get_args(Contract)
KIND_CONTRACTS: Final[tuple[Contract, ...]] = tuple(
    contract for contract in CONTRACTS if contract != "clusterctl"
)
"""The contracts that a kind keeps."""

_BOOK: Final = "https://cluster-api.sigs.k8s.io/developer/providers/contracts/"
_PAGES: Final[dict[Contract, str]] = {
    "control-plane": "control-plane",
    "infra-cluster": "infra-cluster",
    "infra-machine": "infra-machine",
    "machine-pool": "infra-machinepool",
    "bootstrap": "bootstrap-config",
    "clusterctl": "clusterctl",
}

CheckT = TypeVar("CheckT", bound=Callable[..., Any])
CheckT_co = TypeVar("CheckT_co", bound=Callable[..., Any], covariant=True)


class NotApplicableError(Exception):
    """The rule is not for this provider. The message is the reason."""


class UntriedError(Exception):
    """The check could not reach the state that it judges. The message is the reason."""


@dataclass(frozen=True, slots=True)
class Rule(Generic[CheckT_co]):
    """A rule, and the function that checks it.

    The function yields the problems. It raises `NotApplicableError` or `UntriedError` if it cannot
    judge the provider.
    """

    name: str
    requirement: str
    hint: str
    check: CheckT_co
    contracts: tuple[Contract, ...]
    advice: bool
    """Whether Cluster API works without it."""
    alone: bool
    """Whether its check disturbs the whole manager, so that no other check can run."""
    document: str

    def source(self, contract: Contract) -> str:
        """The document that states the rule, for a contract."""
        if self.document.startswith("https://"):
            return self.document
        page = _PAGES[contract]
        # In anchors, the book writes InfraMachine as inframachine.
        document = self.document.replace("*", page).replace("KIND", page.replace("-", ""))
        return f"{_BOOK}{document}"


def rule(
    *contracts: Contract, advice: bool = False, alone: bool = False
) -> Callable[[CheckT], Rule[CheckT]]:
    """Make a rule of a check.

    The docstring of the check has the requirement as its first paragraph, and then the lines
    `Source:` (a page of the Cluster API book's contracts, or a URL; `*` stands for the contract's
    own page, `KIND` for the name of its resource in anchors) and `Fix:`.

    Args:
        contracts: The contracts that have the rule. Without any, those of all kinds.
        advice: Whether Cluster API works without it.
        alone: Whether no other check can run at the same time.
    """

    def make(check: CheckT) -> Rule[CheckT]:
        name: str = getattr(check, "__name__", "")
        requirement, document, hint = parse_docstring(check.__doc__ or "")
        return Rule(
            name=name.replace("_", "-"),
            requirement=requirement,
            hint=hint,
            check=check,
            contracts=contracts or KIND_CONTRACTS,
            advice=advice,
            alone=alone,
            document=document,
        )

    return make


def parse_docstring(text: str) -> tuple[str, str, str]:
    """The requirement, the source and the fix that the docstring of a check states.

    Raises:
        ValueError: one of them is missing.
    """
    clean = cleandoc(text)
    requirement = " ".join(clean.partition("\n\n")[0].split())
    source = re.search(r"^Source: (\S+)$", clean, re.MULTILINE)
    fix = re.search(r"^Fix: (.+)\Z", clean, re.MULTILINE | re.DOTALL)
    if not (requirement and source and fix):
        raise ValueError(
            f"the docstring of a check states the rule, Source: and Fix:, not {text!r}"
        )
    return requirement, source[1], " ".join(fix[1].split())


def rules_of(rules: Iterable[Rule[CheckT]], contract: Contract) -> list[Rule[CheckT]]:
    """The rules that a contract has."""
    return [candidate for candidate in rules if contract in candidate.contracts]
