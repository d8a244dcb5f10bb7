import json
import sys
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path

import pytest
from capelin.runtime import Catalog, Deprecation, Hook, Release, Request, Response
from capelin.runtime.__main__ import main
from capelin.runtime.openapi import openapi_document
from capelin.runtime.releases import BreakingChangesError, Snapshot
from capelin.runtime.v1alpha1 import CLUSTER_API, Discovery

RELEASED = Path(__file__).with_name("released.json")
GROUP = "zoo.example.com"
FIRST, SECOND = Release("1.0", date(2026, 1, 1)), Release("1.1", date(2026, 4, 1))


def test_cluster_apis_hooks_keep_what_the_last_release_promised() -> None:
    """A change that breaks it needs a new version of the hook. To release: `nox -s snapshot`."""
    following = Release(version("capelin-core"), datetime.now(UTC).date())
    Snapshot.read(RELEASED.read_text()).followed_by(CLUSTER_API, following)


class OpeningRequest(Request):
    """Says a gate."""

    gate: str
    description: str = ""
    """What it looks like."""


class NewOpeningRequest(Request):
    gate: str


def zoo(*versions: str, **deprecated: Deprecation) -> Catalog:
    """A catalog with one hook."""
    catalog = Catalog()
    for each in versions:
        hook = type("Opening", (Hook,), {"__orig_bases__": (Hook[OpeningRequest, Response],)})
        catalog.hook(
            f"{GROUP}/{each}",
            summary="Before the gates open",
            tag="Zoo",
            deprecated=deprecated.get(each),
        )(hook)
    return catalog


def test_a_snapshot_is_what_its_file_says() -> None:
    taken = Snapshot.of(zoo("v1"), FIRST, SECOND)
    assert Snapshot.read(taken.text()).releases == (FIRST, SECOND)
    assert Snapshot.read(taken.text()).text() == taken.text()


def test_a_snapshot_has_fields_and_no_words() -> None:
    text = Snapshot.of(zoo("v1"), FIRST).text()
    (fields,) = [
        kind["properties"]
        for name, kind in json.loads(text)["schemas"].items()
        if name.endswith(".OpeningRequest")
    ]
    assert fields["description"] == {"type": "string"}
    for words in ("Says a gate", "looks like", "Before the gates open"):
        assert words not in text


def test_a_field_that_was_released_stays() -> None:
    changed = Catalog()
    hook = type("Opening", (Hook,), {"__orig_bases__": (Hook[NewOpeningRequest, Response],)})
    changed.hook(f"{GROUP}/v1", summary="", tag="")(hook)
    with pytest.raises(BreakingChangesError) as refusal:
        Snapshot.of(zoo("v1"), FIRST).followed_by(changed, SECOND)
    assert refusal.value.problems == [
        f"rule 1: opening {GROUP}/v1: request.description is gone; make the change in a new version"
    ]


def test_what_is_released_next_is_added_to_the_releases() -> None:
    following = Snapshot.of(zoo("v1"), FIRST).followed_by(zoo("v1", "v2"), SECOND)
    assert following.releases == (FIRST, SECOND)
    assert len(following.document["paths"]) == 2


def test_a_release_that_is_put_off_is_written_down_anew() -> None:
    later = Release("1.1", date(2026, 5, 1))
    taken = Snapshot.of(zoo("v1"), FIRST, SECOND).followed_by(zoo("v1"), later)
    assert taken.releases == (FIRST, later)


def test_a_version_goes_when_enough_releases_have_said_so() -> None:
    going = zoo("v1beta1", "v1", v1beta1=Deprecation("1.1", SECOND.date, replaced_by="v1"))
    taken = Snapshot.of(zoo("v1beta1", "v1"), FIRST).followed_by(going, SECOND)
    third, last = Release("1.2", date(2026, 7, 1)), Release("1.3", date(2026, 10, 1))
    with pytest.raises(BreakingChangesError, match=r"rule 4: .* is gone too early"):
        taken.followed_by(zoo("v1"), third)
    read = Snapshot.read(taken.followed_by(going, third).text())
    assert len(read.followed_by(zoo("v1"), last).document["paths"]) == 1


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module with a catalog, as the command line names it."""
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    (tmp_path / "zoo_releases.py").write_text(
        "from capelin.runtime import Catalog\n"
        "from capelin.runtime.v1alpha1 import CLUSTER_API\n"
        "NOTHING = Catalog()\n"
        "ALL = NOTHING.joined(CLUSTER_API)\n"
    )
    return tmp_path


def test_the_command_takes_a_snapshot_and_refuses_what_breaks_it(
    hooks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = hooks / "released.json"
    taking = ("snapshot", str(file), "--date=2026-04-01")
    assert main([*taking, "--release=1.0", "--catalog=zoo_releases:ALL"]) == 0
    taken = file.read_text()
    assert Snapshot.read(taken).releases == (Release("1.0", date(2026, 4, 1)),)
    assert main([*taking, "--release=1.1", "--catalog=zoo_releases:NOTHING"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 17
    gone = "is gone and no version of it is left; keep one"
    assert f"rule 1: discovery {Discovery.id.api_version} {gone}" in said
    assert file.read_text() == taken


def test_the_command_prints_the_openapi_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["openapi", "--title=Hooks", "--release=1.0"]) == 0
    wanted = openapi_document(CLUSTER_API, title="Hooks", version="1.0")
    assert json.loads(capsys.readouterr().out) == wanted


def test_a_catalog_that_is_not_there_is_named(
    hooks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["openapi", "--catalog=zoo_releases:NONE"])
    assert "module zoo_releases has no catalog called NONE" in capsys.readouterr().err
    assert hooks.exists()
