"""The page of operations has the table that the provider decides with."""

import pytest

from docs.site.operations import PAGE, with_table


def test_the_table_of_operations_is_fresh() -> None:
    """Run `python docs/site/operations.py` after a change of a rule."""
    page = PAGE.read_text()
    assert with_table(page) == page
    assert page.count("\n| a rollout of API servers |") == 1


def test_a_stale_rule_is_replaced() -> None:
    page = PAGE.read_text()
    stale = page.replace("waits |", "ends |", 1)
    assert stale != page
    assert with_table(stale) == page


def test_a_page_without_the_table_is_rejected() -> None:
    with pytest.raises(ValueError, match="no table"):
        with_table("# Operations\n")
