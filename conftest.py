"""Settings of every test run."""

import os

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
