"""The order in which clusters are explained."""

from capelin_cli.ui.explaining import Explained, due
from capelin_cli.ui.store import Entry

ONE, TWO = ("default", "one"), ("default", "two")


def entries(one: int = 5, two: int = 5) -> list[Entry]:
    return [Entry(ONE, changed=one), Entry(TWO, changed=two)]


def test_new_clusters_are_first() -> None:
    assert due(entries(), {ONE: Explained(1, 10)}, 100) == [TWO, ONE]


def test_a_changed_cluster_is_explained_again_after_a_while() -> None:
    last = {ONE: Explained(4, 10), TWO: Explained(5, 10)}
    assert due(entries(), last, 11) == []
    assert due(entries(), last, 12) == [ONE]


def test_an_unchanged_cluster_is_explained_again_later() -> None:
    last = {ONE: Explained(5, 10), TWO: Explained(5, 9)}
    assert due(entries(), last, 25) == [TWO, ONE]
