import pytest
from capelin.api.core import ConfigMap, Node
from capelin.controller import EventAggregator, EventRecord
from capelin.controller.events import event_record


def record(reason: str = "Moved", note: str = "moved", name: str = "a") -> EventRecord:
    obj = ConfigMap.of(name, "sea")
    obj.metadata.uid = f"uid-of-{name}"
    return event_record(obj, "Normal", reason, note)


def test_the_first_event_is_written_at_once() -> None:
    aggregator = EventAggregator()
    assert aggregator.count(record(), 0) == 1
    assert aggregator.count(record(reason="Stopped"), 0) == 1
    assert aggregator.count(record(name="b"), 0) == 1


def test_repeated_events_are_counted_and_written_once_a_minute() -> None:
    aggregator = EventAggregator()
    written = {now: aggregator.count(record(), now) for now in range(0, 130, 10)}
    assert {now: count for now, count in written.items() if count} == {0: 1, 60: 7, 120: 13}


def test_unwritten_returns_counted_events_at_the_end() -> None:
    aggregator = EventAggregator()
    for now in (0, 1, 2):
        aggregator.count(record(), now)
    aggregator.count(record(name="b"), 0)
    assert aggregator.unwritten() == [(record(), 3)]


def test_an_object_cannot_flood_the_api_server() -> None:
    aggregator = EventAggregator()
    first = [aggregator.count(record(note=str(n)), 0) for n in range(100)]
    assert first.count(1) == 25
    assert aggregator.count(record(name="b"), 0) == 1
    later = [aggregator.count(record(note=f"later {n}"), 600) for n in range(100)]
    assert later.count(1) == 2


def test_an_event_over_the_budget_is_written_when_it_repeats() -> None:
    aggregator = EventAggregator(burst=1)
    aggregator.count(record(note="other"), 0)
    assert aggregator.count(record(), 0) is None
    assert aggregator.unwritten() == []
    assert aggregator.count(record(), 300) == 2


def test_resume_continues_the_count_of_an_earlier_process() -> None:
    aggregator = EventAggregator()
    aggregator.count(record(), 0)
    aggregator.count(record(), 1)
    aggregator.resume(record(), 8)
    assert aggregator.unwritten() == [(record(), 9)]
    assert aggregator.count(record(), 60) == 10


def test_the_number_of_stored_events_is_limited() -> None:
    aggregator = EventAggregator()
    for n in range(10_000):
        aggregator.count(record(name=f"a{n}"), 0)
        aggregator.count(record(name=f"a{n}"), 0)
    assert len(aggregator.unwritten()) == 4096


def test_the_name_of_an_event_depends_only_on_its_content() -> None:
    assert record().event_name == record().event_name
    names = {record().event_name, record(note="x").event_name, record(reason="X").event_name}
    assert len(names) == 3
    assert record().event_name.startswith("a.")


def test_long_object_names_give_valid_event_names() -> None:
    assert len(record(name="a" * 253).event_name) <= 253
    assert ".." not in record(name="a" * 199 + "." + "b" * 53).event_name


def test_events_about_cluster_scoped_objects_are_in_default() -> None:
    assert event_record(Node.of("n"), "Normal", "A", "a").event_namespace == "default"


@pytest.mark.parametrize("character", ["a", "é", "鯡"])
def test_a_note_is_truncated_to_the_limit_of_kubernetes(character: str) -> None:
    note = record(note=character * 5000).note
    assert 1020 < len(note.encode()) <= 1024


def test_a_note_contains_no_secret() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----"
    assert record(note=f"bad key {key}").note == "bad key (hidden)"
