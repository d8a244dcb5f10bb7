"""How a lost etcd member is replaced, step by step."""

from pathlib import Path

from capelin_control_plane.backends.processes.members import (
    Add,
    Member,
    Remove,
    forget,
    is_lost,
    next_change,
    remember,
    to_replace,
    why_not_start,
)
from capelin_control_plane.backends.processes.places import Place

URL = "https://127.64.0.9:2380"


def test_a_member_goes_before_it_comes_again() -> None:
    others = [Member("1", "https://127.64.0.9:2390", started=True)]
    assert next_change(URL, [*others, Member("9", URL, started=True)]) == Remove("9")
    assert next_change(URL, others) == Add(URL)
    assert next_change(URL, [*others, Member("8", URL, started=False)]) is None


def with_data(place: Place, slot: int) -> Path:
    log = place.etcd(slot) / "member" / "wal" / "0-0.wal"
    log.parent.mkdir(parents=True)
    log.touch()
    return log


def test_a_member_is_lost_when_it_had_data_and_has_none(tmp_path: Path) -> None:
    place = Place(tmp_path, "127.64.0.9")
    remember(place, 0)
    assert not is_lost(place, 0), "it has never had any"
    log = with_data(place, 0)
    remember(place, 0)
    assert not is_lost(place, 0)
    assert why_not_start(place, 0) == ""
    log.unlink()
    assert is_lost(place, 0)
    assert str(place.etcd(0)) in why_not_start(place, 0)
    forget(place, 0)
    assert why_not_start(place, 0) == ""


def test_a_member_is_replaced_by_more_than_half_of_all(tmp_path: Path) -> None:
    place = Place(tmp_path, "127.64.0.9")
    for slot in (0, 1):
        log = with_data(place, slot)
        remember(place, slot)
        log.unlink()
    assert to_replace(place, 3, {2}) is None
    assert to_replace(place, 3, {0, 2}) == 1, "one that is up still knows everything"
    assert to_replace(place, 5, {2, 3, 4}) == 0
    assert to_replace(place, 1, set()) is None
