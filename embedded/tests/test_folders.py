"""Paths of our folders."""

from pathlib import Path

import pytest
from capelin_embedded.folders import cache_folder, state_folder


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")


def test_the_state_folder_follows_xdg() -> None:
    assert state_folder({"XDG_STATE_HOME": "/there"}) == Path("/there/capelin")
    assert state_folder({}) == Path("/home/user/.local/state/capelin")


def test_the_cache_folder_follows_xdg() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/there"}) == Path("/there/capelin")
    assert cache_folder({}) == Path("/home/user/.cache/capelin")


def test_relative_paths_are_ignored() -> None:
    assert state_folder({"XDG_STATE_HOME": "there"}) == state_folder({})
    assert cache_folder({"XDG_CACHE_HOME": "there"}) == cache_folder({})


def test_variables_of_the_process_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/mine")
    monkeypatch.setenv("XDG_CACHE_HOME", "/other")
    assert (state_folder(), cache_folder()) == (Path("/mine/capelin"), Path("/other/capelin"))
