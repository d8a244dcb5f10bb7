"""Patches that replace a whole value."""

from capelin_machine_pool.api import Hosts
from capelin_machine_pool.patches import replacing


def test_fields_that_a_value_does_not_have_are_removed() -> None:
    patch = replacing(Hosts(profile="Bundle"))
    # The rules of the kind reject commands with this profile.
    assert (patch["profile"], patch["installCommands"]) == ("Bundle", None)
    commands = replacing(Hosts(profile="Commands", install_commands=["apt-get update"]))
    assert commands["installCommands"] == ["apt-get update"]
