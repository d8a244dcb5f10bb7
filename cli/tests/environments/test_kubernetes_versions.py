"""Versions in user input, and possible upgrades."""

import json
from pathlib import Path

import pytest
import yaml
from capelin.errors import InvalidInputError
from capelin_cli.environments.kubernetes_versions import (
    check_upgrade,
    next_version,
    parse_version,
)
from capelin_embedded.binaries import DEFAULT_KUBERNETES, KNOWN_KUBERNETES

from cli.tests.command import capelin

KNOWN = ("v1.33.0", "v1.33.13", "v1.34.4")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("v1.34.4", "v1.34.4"),
        ("1.34.4", "v1.34.4"),
        ("1.33", "v1.33.13"),
        ("v1.33", "v1.33.13"),
        ("latest", "v1.34.4"),
    ],
)
def test_a_version_may_be_written_in_short(text: str, version: str) -> None:
    assert parse_version(text, KNOWN) == version


@pytest.mark.parametrize("text", ["v1.35.0", "v9.9.9", "1.35", "v1", "newest", ""])
def test_an_unknown_version_is_rejected_with_the_list(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"Known: v1\.33\.0, v1\.33\.13, v1\.34\.4\."):
        parse_version(text, KNOWN)


def test_control_planes_of_other_providers_accept_any_version() -> None:
    assert parse_version("1.35.0") == "v1.35.0"
    for text in ("v1.35", "latest"):
        with pytest.raises(InvalidInputError, match="is not a version"):
            parse_version(text)


@pytest.mark.parametrize("after", ["v1.33.1", "v1.34.0", "v1.34.4"])
def test_upgrades_go_to_later_patches_and_the_next_minor(after: str) -> None:
    check_upgrade("v1.33.0", after)


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ("v1.32.9", "^The cluster .* v1.32.9 is older than"),
        ("v1.35.0", "upgrades one at a time. Upgrade to v1.34 first"),
    ],
)
def test_upgrades_that_kubernetes_does_not_support_are_rejected(after: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        check_upgrade("v1.33.0", after)


def test_the_hint_names_only_known_versions() -> None:
    with pytest.raises(InvalidInputError) as caught:
        check_upgrade("v1.33.0", "v1.35.0", KNOWN)
    assert caught.value.hint == "It can be upgraded to v1.33.13, v1.34.4."
    with pytest.raises(InvalidInputError) as caught:
        check_upgrade("v1.34.4", "v1.33.0", KNOWN)
    assert caught.value.hint == "Capelin supports no version after v1.34.4."


@pytest.mark.parametrize(
    ("current", "expected"),
    [("v1.33.0", "v1.34.4"), ("v1.33.13", "v1.34.4"), ("v1.34.0", "v1.34.4")],
)
def test_upgrade_prefers_the_next_minor(current: str, expected: str) -> None:
    assert next_version(current, KNOWN) == expected


@pytest.mark.parametrize(
    ("known", "words"),
    [(KNOWN, "Capelin supports no version after v1.34.4."), ((), "another provider's")],
)
def test_without_a_next_version_the_upgrade_fails(known: tuple[str, ...], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        next_version("v1.34.4", known)


def test_versions_lists_the_versions_for_clusters(tmp_path: Path) -> None:
    listed = json.loads(capelin("versions", "-o", "json", home=tmp_path).stdout)
    assert [row["version"] for row in listed] == [*KNOWN_KUBERNETES]
    assert [row["version"] for row in listed if row["default"]] == [DEFAULT_KUBERNETES]
    assert yaml.safe_load(capelin("versions", "-o", "yaml", home=tmp_path).stdout) == listed
    first, *rest = capelin("versions", home=tmp_path).stdout.splitlines()
    assert first.split() == ["VERSION", "IN", "CACHE", "NOTE"]
    assert rest[-1].split()[-1] == "latest"
