import pytest
from capelin.api.views.core import ConfigMap, Node
from capelin.controller.events import Folding, Happening, happening


def told(reason: str = "Moved", note: str = "moved", name: str = "a") -> Happening:
    obj = ConfigMap.of(name, "sea")
    obj.metadata.uid = f"uid-of-{name}"
    return happening(obj, "Normal", reason, note)


def test_the_first_of_a_kind_is_written_at_once() -> None:
    folding = Folding()
    assert folding.heard(told(), 0) == 1
    assert folding.heard(told(reason="Stopped"), 0) == 1
    assert folding.heard(told(name="b"), 0) == 1


def test_the_same_again_is_counted_and_written_once_a_minute() -> None:
    folding = Folding()
    written = {now: folding.heard(told(), now) for now in range(0, 130, 10)}
    assert {now: count for now, count in written.items() if count} == {0: 1, 60: 7, 120: 13}


def test_what_was_counted_and_not_written_is_known_at_the_end() -> None:
    folding = Folding()
    for now in (0, 1, 2):
        folding.heard(told(), now)
    folding.heard(told(name="b"), 0)
    assert folding.unwritten() == [(told(), 3)]


def test_an_object_cannot_flood_the_api_server() -> None:
    folding = Folding()
    first = [folding.heard(told(note=str(n)), 0) for n in range(100)]
    assert first.count(1) == 25
    assert folding.heard(told(name="b"), 0) == 1
    later = [folding.heard(told(note=f"later {n}"), 600) for n in range(100)]
    assert later.count(1) == 2


def test_what_did_not_fit_the_budget_is_written_when_it_comes_again() -> None:
    folding = Folding(burst=1)
    folding.heard(told(note="other"), 0)
    assert folding.heard(told(), 0) is None
    assert folding.unwritten() == []
    assert folding.heard(told(), 300) == 2


def test_counting_goes_on_where_an_earlier_process_stopped() -> None:
    folding = Folding()
    folding.heard(told(), 0)
    folding.heard(told(), 1)
    folding.resume(told(), 8)
    assert folding.unwritten() == [(told(), 9)]
    assert folding.heard(told(), 60) == 10


def test_memory_is_bounded() -> None:
    folding = Folding()
    for n in range(10_000):
        folding.heard(told(name=f"a{n}"), 0)
        folding.heard(told(name=f"a{n}"), 0)
    assert len(folding.unwritten()) == 4096


def test_the_name_of_an_event_depends_on_what_it_says_and_on_nothing_else() -> None:
    assert told().event_name == told().event_name
    names = {told().event_name, told(note="x").event_name, told(reason="X").event_name}
    assert len(names) == 3
    assert told().event_name.startswith("a.")


def test_a_long_name_still_makes_the_name_of_an_event() -> None:
    assert len(told(name="a" * 253).event_name) <= 253
    assert ".." not in told(name="a" * 199 + "." + "b" * 53).event_name


def test_an_event_about_something_of_the_whole_cluster_is_kept_in_default() -> None:
    assert happening(Node.of("n"), "Normal", "A", "a").event_namespace == "default"


@pytest.mark.parametrize("character", ["a", "é", "鯡"])
def test_a_note_is_cut_to_what_kubernetes_takes(character: str) -> None:
    note = told(note=character * 5000).note
    assert 1020 < len(note.encode()) <= 1024


def test_a_note_holds_no_secret() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----"
    assert told(note=f"bad key {key}").note == "bad key (hidden)"
