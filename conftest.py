"""Settings of every test run, and how little of it is measured for coverage.

The interpreter runs several times slower while it is traced. What is done again and again shows
no line that its first rounds did not show.
"""

import gc
import os
import sys
from collections.abc import Callable, Generator
from functools import wraps
from inspect import iscoroutinefunction
from itertools import islice
from typing import Any

import pytest
from hypothesis import settings

# Machines are shared and noisy: an example that takes long is no mistake.
settings.register_profile("capelin", deadline=None)
settings.load_profile("capelin")

MEASURED_EXAMPLES = 30
"""How many examples of a property are measured for coverage."""


def pytest_configure(config: pytest.Config) -> None:
    """Say what our marker means, and measure the tests' own process only.

    Whatever a test starts would take twice the time, and most of it is killed before it could tell.
    """
    if hasattr(config, "workerinput"):
        for name in [each for each in os.environ if each.startswith("COVERAGE_PROCESS")]:
            del os.environ[name]
    config.addinivalue_line(
        "markers",
        "integration: it takes so long that it is left to the integration session.",
    )
    config.addinivalue_line(
        "markers",
        "repetitive: it does the same so often that measuring its coverage would only take time; "
        "other tests show what is covered.",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import all tests with coverage in one worker only, and keep them out of garbage collection.

    Every worker imports the same, and nothing of it goes before the end.
    """
    trace = sys.gettrace()
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
        sys.settrace(None)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        sys.settrace(trace)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have each worker begin with its share of what may take long, so that none has it left.

    Workers begin with equal parts of all tests, in their order, and take others' last ones later.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if item.get_closest_marker("timeout")]
    rest = iter([item for item in items if not item.get_closest_marker("timeout")])
    total, begun = len(items), 0
    if -(-len(slow) // workers) > total // workers:
        # So few are chosen that there is nothing to share out.
        return
    for worker in range(workers):
        share = slow[worker::workers]
        size = (total - begun) // (workers - worker)
        items[begun : begun + size] = [*share, *islice(rest, size - len(share))]
        begun += size


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run repetitive tests without coverage, and properties with it for a few examples."""
    trace = sys.gettrace()
    if item.get_closest_marker("repetitive"):
        sys.settrace(None)
    property_ = getattr(getattr(item, "obj", None), "hypothesis", None)
    test: Callable[..., Any] | None = property_ and property_.inner_test
    if property_ and test and not iscoroutinefunction(test):
        property_.inner_test = _measured_at_first(test)
    try:
        return (yield)
    finally:
        sys.settrace(trace)
        if property_:
            property_.inner_test = test


def _measured_at_first(test: Callable[..., Any]) -> Callable[..., Any]:
    examples = 0

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> Any:
        nonlocal examples
        examples += 1
        if examples > MEASURED_EXAMPLES:
            sys.settrace(None)
        return test(*arguments, **named)

    return run
