"""Each file belongs to one room, and budgets only become smaller by themselves."""

import tomllib

import pytest

from tools.budgets import Room, lowered, room_of

TEXT = """# Lines

[core]
folders = ["core/src"]
goal = 10
most = 30

[other]
folders = ["tools"]
without = ["tools/release"]
goal = 5
most = 20
"""
ROOMS = tomllib.loads(TEXT)


@pytest.mark.parametrize(
    ("path", "room"),
    [
        ("core/src/capelin/hosts.py", "core"),
        ("core/tests/test_hosts.py", "tests"),
        ("tests/registry/server.py", "tests"),
        ("tools/versions.py", "other"),
    ],
)
def test_a_file_belongs_to_a_room(path: str, room: str) -> None:
    assert room_of(path, ROOMS) == room


@pytest.mark.parametrize("path", ["core/srcs/a.py", "tools/release/src/a.py"])
def test_a_file_without_a_room_is_an_error(path: str) -> None:
    with pytest.raises(ValueError, match=path):
        room_of(path, ROOMS)


def test_only_smaller_rooms_change_their_budgets() -> None:
    rooms = [Room("core", 30, 10, 25), Room("other", 20, 5, 22)]
    assert lowered(TEXT, rooms) == TEXT.replace("most = 30", "most = 25")
