import logging
import os
import threading

import pytest
from capelin.runtime.server.process import end_unfinished


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([threading.Thread(name="pool-1")], "threads that hang: pool-1"),
        ([], "a task continues although it was cancelled"),
        ([threading.Thread(name="handler", daemon=True)], "a task continues although"),
    ],
)
def test_end_unfinished_logs_what_blocks_the_process(
    others: list[threading.Thread],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread(), *others])
    with caplog.at_level(logging.WARNING):
        end_unfinished()
    assert codes == [0]
    assert message in caplog.text
    assert "none" not in caplog.text
