"""The page of hosts and policies has the tables that the reconcilers' functions give."""

import pytest

from docs.site.pairs import PAGE, tables, with_tables


def test_the_tables_of_hosts_and_policies_are_fresh() -> None:
    """Run `python docs/site/pairs.py` after a change of a decision."""
    page = PAGE.read_text()
    assert with_tables(page) == page
    assert all(table in page for table in tables().values())


def test_a_stale_cell_is_replaced() -> None:
    page = PAGE.read_text()
    stale = page.replace("waits for a person |", "cleaned |", 1)
    assert stale != page
    assert with_tables(stale) == page


def test_a_page_without_a_table_is_rejected() -> None:
    with pytest.raises(ValueError, match="no table"):
        with_tables("# Hosts and policies\n")
