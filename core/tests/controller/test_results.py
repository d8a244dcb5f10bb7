from datetime import timedelta

import pytest
from capelin.controller import After, ObjectKey, backoff_for


@pytest.mark.parametrize(("waited", "next_look"), [(0, 1), (5, 1), (50, 5), (600, 60), (86400, 60)])
def test_patience_grows_with_the_wait(waited: float, next_look: float) -> None:
    assert backoff_for(timedelta(seconds=waited)) == After(next_look)


def test_patience_takes_limits() -> None:
    assert backoff_for(timedelta(0), least=3, most=9) == After(3)
    assert backoff_for(timedelta(hours=1), least=3, most=9) == After(9)


def test_keys_read_as_kubectl_writes_them() -> None:
    assert [str(ObjectKey("default", "a")), str(ObjectKey("", "a"))] == ["default/a", "a"]
