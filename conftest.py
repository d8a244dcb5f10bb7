"""Settings of every test run."""

import os
import sys
from collections.abc import Generator

import pytest
from hypothesis import settings

# Machines are shared and noisy: an example that takes long is no mistake.
settings.register_profile("capelin", deadline=None)
settings.load_profile("capelin")


def pytest_configure(config: pytest.Config) -> None:
    """Say what our marker means, and measure the tests' own process only.

    Whatever a test starts would take twice the time, and most of it is killed before it could tell.
    """
    if hasattr(config, "workerinput"):
        for name in [each for each in os.environ if each.startswith("COVERAGE_PROCESS")]:
            del os.environ[name]
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
