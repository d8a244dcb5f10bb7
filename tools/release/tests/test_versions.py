"""The table of versions."""

from datetime import date

import pytest
from capelin_embedded.binaries import DEFAULT_KUBERNETES, KUBERNETES, TESTED_KUBERNETES

from tools.versions import ends_of_support, rows

ENDS = ends_of_support()["kubernetes"]


def test_each_minor_version_of_kubernetes_has_an_end_of_support() -> None:
    minors = {".".join(version.removeprefix("v").split(".")[:2]) for version in KUBERNETES.versions}
    assert minors <= ENDS.keys()


@pytest.mark.parametrize("version", TESTED_KUBERNETES)
def test_each_tested_version_is_supported(version: str) -> None:
    assert ENDS[version.removeprefix("v").rpartition(".")[0]] > date(2026, 11, 28)


def test_a_row_shows_the_newest_patch_and_the_end_of_support() -> None:
    known = f"k8s.io/kubernetes v1.34.4 v1.34.9 v1.37.0-rc.1 {DEFAULT_KUBERNETES} v1.36.1"
    found = {row.version: row for row in rows(KUBERNETES, known, ENDS, date(2026, 11, 28))}
    old, new = found["v1.34.4"], found[DEFAULT_KUBERNETES]
    assert (old.newest, old.support) == ("v1.34.9", "**ended 2026-10-27**")
    assert (new.newest, new.support) == ("this one", "until 2027-06-28")
    assert found["v1.31.0"].newest == "unknown"
