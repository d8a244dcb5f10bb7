"""Texts show commands in the form that the user typed."""

import pytest
from capelin_cli.terminal.text import as_invoked, environment_option

UV = {"UV_RUN_RECURSION_DEPTH": "1"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Continue with capelin up -e a.", "Continue with uv run capelin up -e a."),
        ("See capelin status; capelin down.", "See uv run capelin status; uv run capelin down."),
        ("It is in uv run capelin up.", "It is in uv run capelin up."),
        ("Run capelin wait cluster a.", "Run uv run capelin wait cluster a."),
        ("Capelin has no version.", "Capelin has no version."),
        ("/bin/capelin up", "/bin/capelin up"),
        ("the folder capelin exists", "the folder capelin exists"),
    ],
)
def test_printed_commands_match_the_users_invocation(text: str, expected: str) -> None:
    assert as_invoked(text, UV) == expected
    assert as_invoked(text, {}) == text


@pytest.mark.parametrize(
    ("name", "variables", "option"),
    [
        ("default", {}, ""),
        ("default", {"CAPELIN_ENVIRONMENT": ""}, ""),
        ("default", {"CAPELIN_ENVIRONMENT": "default"}, ""),
        ("default", {"CAPELIN_ENVIRONMENT": "lab"}, " -e default"),
        ("lab", {}, " -e lab"),
        ("lab", {"CAPELIN_ENVIRONMENT": "lab"}, " -e lab"),
    ],
)
def test_environment_in_commands(name: str, variables: dict[str, str], option: str) -> None:
    assert environment_option(name, variables) == option
