"""The troubleshooting page lists every reason with its meaning and the next step."""

import pytest
from capelin.provider import Reasons

from docs.site.reasons import PAGE, REASONS, with_tables


def test_the_tables_of_reasons_are_fresh() -> None:
    """Run `python docs/site/reasons.py` after a change of a reason."""
    page = PAGE.read_text()
    assert with_tables(page) == page


def test_a_stale_table_is_replaced() -> None:
    page = PAGE.read_text()
    stale = page.replace("| `QuorumLost` |", "| `QuorumGone` |")
    assert stale != page
    assert with_tables(stale) == page


def test_a_page_without_a_table_is_rejected() -> None:
    with pytest.raises(ValueError, match="has no heading"):
        with_tables("# Troubleshooting\n")


@pytest.mark.parametrize(
    "reason", [reason for reasons in REASONS.values() for reason in reasons], ids=str
)
def test_a_reason_has_texts_that_fit_into_a_cell(reason: Reasons) -> None:
    for text in (reason.meaning, reason.next_step):
        assert text
        assert text == text.strip(" .\n")
        assert not {"|", "\n"} & set(text)
