"""Common fixtures of the command's tests."""

import pytest


@pytest.fixture(autouse=True)
def called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line shows `capelin`, even if uv runs the tests."""
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
