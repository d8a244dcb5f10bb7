"""What every test of the command starts from."""

import pytest


@pytest.fixture(autouse=True)
def called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is called as `capelin`, even where uv runs the tests."""
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
