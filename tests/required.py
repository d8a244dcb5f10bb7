"""Turns skips into failures on machines that have everything that the tests need."""

import os
from collections.abc import Generator
from typing import Final

import pytest

REQUIRED: Final = "CAPELIN_E2E_REQUIRED"
"""The variable that enables it."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a skipped test as failed if the variable is set."""
    report = yield
    # A test that is expected to fail is reported as skipped too.
    if REQUIRED in os.environ and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{REQUIRED} is set, and the test was skipped: {_reason(report)}"
    return report


def _reason(report: pytest.TestReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
