"""Where our folders are, whatever the user's variables say."""

from pathlib import Path

import pytest
from capelin.embedded.folders import cache_folder, state_folder


@pytest.fixture(autouse=True)
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")


def test_state_is_where_xdg_has_it() -> None:
    assert state_folder({"XDG_STATE_HOME": "/there"}) == Path("/there/capelin")
    assert state_folder({}) == Path("/home/somebody/.local/state/capelin")


def test_the_cache_is_where_xdg_has_it() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/there"}) == Path("/there/capelin")
    assert cache_folder({}) == Path("/home/somebody/.cache/capelin")


def test_a_relative_path_is_passed_over_as_the_specification_has_it() -> None:
    assert state_folder({"XDG_STATE_HOME": "there"}) == state_folder({})
    assert cache_folder({"XDG_CACHE_HOME": "there"}) == cache_folder({})


def test_the_variables_of_the_process_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/mine")
    monkeypatch.setenv("XDG_CACHE_HOME", "/other")
    assert (state_folder(), cache_folder()) == (Path("/mine/capelin"), Path("/other/capelin"))
