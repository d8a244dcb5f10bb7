"""An extension, asked what its document allows and forbids; `nox -s fuzz` asks on for longer."""

import pytest

from tests.fuzz import main

pytestmark = pytest.mark.timeout(300)

BRIEFLY = ("--phases=fuzzing", "--max-examples=15")
PATIENTLY = ("--max-response-time=10", "--suppress-health-check=all")
"""Others use the machine: what takes long is no mistake here, what never ends is."""


def test_an_extension_answers_whatever_it_is_asked_and_goes_on() -> None:
    assert main([*BRIEFLY, *PATIENTLY]) == 0
