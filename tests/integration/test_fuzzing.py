"""Valid and invalid requests to an extension. `nox -s fuzz` runs longer."""

import pytest

from tests.fuzz import main

pytestmark = pytest.mark.timeout(300)

BRIEFLY = ("--phases=fuzzing", "--max-examples=15")
PATIENTLY = ("--max-response-time=10", "--suppress-health-check=all")
"""The machine is shared, so only endless answers are failures."""


def test_an_extension_answers_valid_and_invalid_requests_and_keeps_running() -> None:
    assert main([*BRIEFLY, *PATIENTLY]) == 0
