"""The chosen addresses of an API server survive a power failure, or are chosen again."""

from pathlib import Path

import pytest
from capelin_embedded.apiserver.server import read_listeners


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"other": 1}'])
def test_unreadable_listeners_are_chosen_again(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "place.json"
    assert read_listeners(file) is None
    file.write_bytes(content)
    assert read_listeners(file) is None
