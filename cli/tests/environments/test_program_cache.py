"""The commands that list and prune cached binaries."""

import asyncio
from pathlib import Path

import pytest
from capelin_embedded.binaries import Cache, ComponentVersion, Platform, parse_component

from cli.tests.command import capelin

SIZE = 2_000_000


@pytest.fixture
async def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache with a current binary and an obsolete one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    cache = Cache(tmp_path / "caches" / "capelin")
    known = parse_component("etcd")
    for each, content in ((known, b"n"), (ComponentVersion(known.component, "v3.0.0"), b"o")):
        async with cache.building(str(each)) as place:
            made = place.folder / "made"
            made.write_bytes(content * SIZE)
            cache.add(made, each, Platform("linux", "amd64"), "a test")
    return cache


def versions(cache: Cache) -> set[str]:
    return {each.version for each in cache.entries()}


def test_ls_shows_each_binary_and_the_total_size(kept: Cache, tmp_path: Path) -> None:
    lines = capelin("cache", "ls", home=tmp_path).stdout.splitlines()
    assert lines[0].split() == ["PROGRAM", "VERSION", "SIZE", "FROM"]
    assert sorted(line.split() for line in lines[1:3]) == [
        ["etcd", "v3.0.0", "2", "MB", "a", "test"],
        ["etcd", parse_component("etcd").version, "2", "MB", "a", "test"],
    ]
    assert lines[3:] == [f"2 programs, 4 MB, in {kept.root}"]


def test_prune_removes_obsolete_binaries(kept: Cache, tmp_path: Path) -> None:
    pruned = capelin("cache", "prune", "--yes", home=tmp_path)
    assert pruned.stdout == f"2 MB freed in {kept.root}\n"
    assert versions(kept) == {parse_component("etcd").version}


def test_prune_all_removes_every_binary(kept: Cache, tmp_path: Path) -> None:
    assert capelin("cache", "prune", "--all", "--yes", home=tmp_path).stdout.startswith(
        "4 MB freed"
    )
    assert versions(kept) == set()


def test_prune_needs_a_confirmation(kept: Cache, tmp_path: Path) -> None:
    refused = capelin("cache", "prune", "--all", home=tmp_path)
    assert refused.returncode == 2
    assert "Remove 2 programs, 4 MB?" in refused.stderr
    shown = capelin("cache", "prune", "--dry-run", home=tmp_path).stdout.splitlines()
    assert shown == ["etcd v3.0.0  2 MB", f"2 MB would be freed in {kept.root}"]
    assert len(kept.entries()) == 2


def test_table_without_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    source = "a source " * 30

    async def fill() -> None:
        cache = Cache(tmp_path / "caches" / "capelin")
        component = parse_component("etcd")
        async with cache.building(str(component)) as place:
            made = place.folder / "made"
            made.write_bytes(b"n")
            cache.add(made, component, Platform("linux", "amd64"), source.strip())

    asyncio.run(fill())
    assert source.strip() in capelin("cache", "ls", home=tmp_path).stdout
