"""Settings of every test run."""

import sys
from collections.abc import Generator

import pytest
from hypothesis import settings

# Machines are shared and noisy: an example that takes long is no mistake.
settings.register_profile("capelin", deadline=None)
settings.load_profile("capelin")


def pytest_configure(config: pytest.Config) -> None:
    """Say what our marker means."""
    config.addinivalue_line(
        "markers",
        "repetitive: it does the same so often that measuring its coverage would only take time; "
        "other tests show what is covered.",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run repetitive tests without coverage, with which they take half as long again."""
    trace = sys.gettrace()
    if item.get_closest_marker("repetitive"):
        sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(trace)
