"""The lock file of the Go programs in images."""

import pytest
from capelin_release.programs import LockedProgram


@pytest.mark.parametrize("program", LockedProgram.read_all(), ids=lambda program: program.name)
def test_the_locked_digests_belong_to_the_present_modules(program: LockedProgram) -> None:
    assert program.present_modules == program.modules, (
        f"{program.name} compiles other modules than the locked build. Build it for each"
        " architecture, and write both digests and this one into programs.lock."
    )
