import asyncio
import os
import stat
from pathlib import Path

import pytest
from capelin_embedded.binaries import BinariesError, Cache, Entry
from capelin_embedded.binaries.catalog import Platform, parse_component
from capelin_embedded.binaries.errors import SourceFailedError

LINUX = Platform("linux", "amd64")
ETCD = parse_component("etcd")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


async def put(cache: Cache, content: str = "a program", name: str = "etcd") -> Entry:
    async with cache.building(name) as work:
        file = work.folder / "made"
        file.write_text(content)
        return cache.add(file, parse_component(name), LINUX, "a test")


def content_of(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


async def test_find_returns_an_added_entry(cache: Cache) -> None:
    assert cache.find(ETCD, LINUX) is None
    entry = await put(cache)
    cached = Cache(cache.root).find(ETCD, LINUX)
    assert cached == entry
    assert cache.path(entry).read_text() == "a program"
    assert stat.S_IMODE(cache.path(entry).stat().st_mode) == 0o755
    assert (entry.version, entry.platform, entry.source) == ("v3.6.8", "linux/amd64", "a test")


async def test_find_matches_platform_and_name(cache: Cache) -> None:
    await put(cache)
    assert cache.find(ETCD, Platform("linux", "arm64")) is None
    assert cache.find(parse_component("etcdctl"), LINUX) is None


async def test_a_program_keeps_its_name_in_a_folder_with_its_digest(cache: Cache) -> None:
    entry = await put(cache)
    assert cache.path(entry) == cache.root / "blobs" / entry.digest / "etcd"


async def test_other_users_cannot_read_the_cache(cache: Cache) -> None:
    await put(cache)
    assert stat.S_IMODE(cache.root.stat().st_mode) == 0o700


async def test_find_ignores_a_changed_program(cache: Cache) -> None:
    file = cache.path(await put(cache, "a program"))
    file.write_text("a viruss!")
    assert cache.find(ETCD, LINUX) is None


async def test_find_ignores_a_truncated_program(cache: Cache) -> None:
    entry = await put(cache, "a program")
    cache.path(entry).write_text("a pro")
    os.utime(cache.path(entry), ns=(entry.modified, entry.modified))
    assert cache.find(ETCD, LINUX) is None


async def test_find_ignores_a_missing_program(cache: Cache) -> None:
    cache.path(await put(cache)).unlink()
    assert cache.find(ETCD, LINUX) is None


async def test_a_restored_cache_is_hashed_once(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = await put(cache)
    os.utime(cache.path(entry), ns=(1, 1))
    cached = cache.find(ETCD, LINUX)
    assert cached is not None
    assert cached.digest == entry.digest

    def never(file: Path) -> str:
        raise AssertionError(file)

    monkeypatch.setattr("capelin_embedded.binaries.cache._digest", never)
    assert cache.find(ETCD, LINUX) == cached


async def test_an_unreadable_record_counts_as_missing(cache: Cache) -> None:
    await put(cache)
    (record,) = (cache.root / "index").iterdir()
    record.write_text('{"component": "et')
    assert cache.find(ETCD, LINUX) is None
    assert cache.entries() == []


async def test_entries_are_listed_by_name(cache: Cache) -> None:
    second, first = await put(cache, "b", "kwok"), await put(cache, "a", "etcd")
    assert cache.entries() == [first, second]
    assert [str(entry) for entry in cache.entries()] == ["etcd v3.6.8", "kwok v0.7.0"]


async def test_verify_removes_damage_that_size_and_time_do_not_show(cache: Cache) -> None:
    damaged, whole = await put(cache, "a program"), await put(cache, "b", "kwok")
    cache.path(damaged).write_text("a progrom")
    os.utime(cache.path(damaged), ns=(damaged.modified, damaged.modified))
    assert cache.find(ETCD, LINUX) == damaged
    assert cache.verify() == [damaged]
    assert cache.entries() == [whole]
    assert not cache.path(damaged).exists()
    assert cache.verify() == []


async def test_verify_removes_missing_entries(cache: Cache) -> None:
    entry = await put(cache)
    cache.path(entry).unlink()
    assert cache.verify() == [entry]
    assert cache.entries() == []


async def test_prune_keeps_the_given_entries_and_removes_the_rest(cache: Cache) -> None:
    kept, removed = await put(cache, "a", "etcd"), await put(cache, "b" * 1000, "kwok")
    (cache.root / "partial" / "x").mkdir(parents=True)
    (cache.root / "partial" / "x" / "half").write_text("half")
    (cache.root / "work" / "y").mkdir(parents=True)
    (cache.root / "components" / "v1").mkdir(parents=True)
    cache.record_digest("registry.k8s.io/a/b:c", "sha256:1")
    freed = cache.prune(keep=[kept])
    assert cache.entries() == [kept]
    assert 1000 < freed < 2000
    assert cache.path(kept).exists()
    assert not cache.path(removed).exists()
    assert {child.name for child in cache.root.iterdir()} == {"blobs", "images", "index", "locks"}
    assert cache.recorded_digest("registry.k8s.io/a/b:c") == "sha256:1"


async def test_prune_keeps_an_entry_with_a_renewed_record(cache: Cache) -> None:
    entry = await put(cache)
    os.utime(cache.path(entry), ns=(1, 1))
    cache.find(ETCD, LINUX)
    cache.prune(keep=[entry])
    assert cache.find(ETCD, LINUX) is not None


async def test_prune_keeps_a_program_with_the_content_of_a_removed_one(cache: Cache) -> None:
    removed = await put(cache, "same", "etcd")
    kept = await put(cache, "same", "etcdctl")
    cache.prune(keep=[kept])
    assert removed.digest == kept.digest
    assert cache.find(parse_component("etcdctl"), LINUX) == kept


@pytest.mark.parametrize("action", ["verify", "prune"])
async def test_verify_and_prune_fail_during_a_build(cache: Cache, action: str) -> None:
    async with cache.building("etcd"):
        with pytest.raises(BinariesError, match=r"another process is filling .*Try again"):
            getattr(cache, action)()
    getattr(cache, action)()


async def test_builds_of_one_program_exclude_each_other(cache: Cache) -> None:
    waited = asyncio.Event()

    async def second() -> None:
        async with cache.building("etcd", on_wait=waited.set):
            assert not inside

    async with cache.building("etcd"):
        inside = True
        task = asyncio.create_task(second())
        await waited.wait()
        inside = False
    await task


async def test_builds_of_different_programs_can_overlap(cache: Cache) -> None:
    async with cache.building("etcd"), cache.building("kwok"):
        pass


async def test_a_build_removes_the_remains_of_a_killed_one(cache: Cache) -> None:
    await put(cache)
    stale = cache.root / "work" / "etcd~killed"
    other = cache.root / "work" / "kwok~busy"
    for folder in (stale, other):
        folder.mkdir()
        (folder / "half").write_text("half a pro")
    async with cache.building("etcd") as work:
        assert not stale.exists()
        assert work.folder.parent == stale.parent
    assert other.exists()


async def test_a_failed_build_leaves_nothing_behind(cache: Cache) -> None:
    with pytest.raises(RuntimeError):  # noqa: PT012
        async with cache.building("etcd") as work:
            (work.folder / "half").write_text("half")
            raise RuntimeError
    assert content_of(cache.root) == {"locks/cache.lock", "locks/etcd.lock"}
    assert not list((cache.root / "partial").iterdir())


async def test_the_cache_records_the_digest_of_an_image(cache: Cache) -> None:
    assert cache.recorded_digest("registry.k8s.io/etcd:3.6.8-0") is None
    cache.record_digest("registry.k8s.io/etcd:3.6.8-0", "sha256:1")
    assert Cache(cache.root).recorded_digest("registry.k8s.io/etcd:3.6.8-0") == "sha256:1"
    assert cache.recorded_digest("registry.k8s.io/etcd:3.6.4-0") is None


async def test_a_damaged_digest_file_is_an_error(cache: Cache) -> None:
    cache.record_digest("a/b:c", "sha256:1")
    cache.digest_file("a/b:c").write_text("{")
    with pytest.raises(SourceFailedError, match=r"a%2Fb:c.json is damaged. Remove it"):
        cache.recorded_digest("a/b:c")


async def test_an_unwritable_cache_fails_with_a_hint(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_access(*_: object) -> bool:
        return False

    monkeypatch.setattr("os.access", no_access)
    with pytest.raises(BinariesError, match=r"cache is not writable. .*XDG_CACHE_HOME"):
        async with cache.building("etcd"):
            pass


def test_the_folder_of_a_cache_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Cache(Path("here")).root == tmp_path / "here"
