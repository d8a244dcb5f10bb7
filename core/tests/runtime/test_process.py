import logging
import os
import threading

import pytest
from capelin.runtime.server.process import end_unfinished


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([threading.Thread(name="pool-1")], "threads that hang: pool-1"),
        ([], "a task continues although it was cancelled"),
        ([threading.Thread(name="handler", daemon=True)], "a task continues although"),
    ],
)
def test_a_process_that_is_held_up_says_by_what(
    others: list[threading.Thread],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), *others])
    with caplog.at_level(logging.WARNING):
        end_unfinished()
    assert codes == [0]
    assert said in caplog.text
    assert "none" not in caplog.text
