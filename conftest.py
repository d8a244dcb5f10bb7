"""Settings of every test run."""

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

# Machines are shared and noisy: a slow example is not an error.
settings.register_profile("capelin", deadline=None, derandomize=True, max_examples=40)
# `nox -s seeds`: other examples each time. A failure prints the line that stores its example.
settings.register_profile("seeds", deadline=None, max_examples=1000, print_blob=True)
# Environments of tests build nothing in the background.
os.environ.setdefault("CAPELIN_PREFETCH", "0")
settings.load_profile(os.environ.get("CAPELIN_HYPOTHESIS", "capelin"))


def pytest_configure(config: pytest.Config) -> None:
    """Describe our markers."""
    config.addinivalue_line(
        "markers",
        "integration: a long test, only for the integration sessions.",
    )
    config.addinivalue_line(
        "markers",
        "representative: a long test that CI runs with every change. A few for each capability.",
    )
    config.addinivalue_line(
        "markers",
        "repetitive: a test that repeats the same many times. The coverage session leaves it out.",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a skipped test as failed: a green run means that all of its tests passed.

    A test that needs more than Python and the binaries of the catalog is `integration`.
    """
    report = yield
    # A test that is expected to fail is reported as skipped too.
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        report.outcome = "failed"
        report.longrepr = f"the test was skipped, and none may be: {reason}"
    return report
