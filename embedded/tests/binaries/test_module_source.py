import hashlib
import io
import json
import re
import zipfile
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capelin_embedded.binaries import Binaries, NotObtainableError, UnknownComponentError
from capelin_embedded.binaries.catalog import PROJECTS
from capelin_embedded.binaries.errors import SourceFailedError
from capelin_embedded.binaries.module_source import Module, first_proxy, folder_hash, tree_hash

if TYPE_CHECKING:
    from .conftest import FakeGo, RecordedProgress, Registry

    Making = Callable[..., Binaries]

KWOK = "sigs.k8s.io/kwok@v0.7.0"
FILES = {f"{KWOK}/kustomize/stage.yaml": b"kind: Stage\n", f"{KWOK}/LICENSE": b"Apache\n"}


def hash_of(files: Mapping[str, bytes]) -> str:
    """An independent implementation of Go's `h1:` hash."""
    lines = [f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)]
    return "h1:" + b64encode(hashlib.sha256("".join(lines).encode()).digest()).decode()


@pytest.fixture(autouse=True)
def pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Module files that pin `FILES` as the content of KWOK."""
    folder = tmp_path / "modules" / "kwok" / "v0.7.0"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text("module capelin/kwok\n\ngo 1.24.0\n")
    (folder / "go.sum").write_text(
        f"sigs.k8s.io/kwok v0.7.0/go.mod h1:other\nsigs.k8s.io/kwok v0.7.0 {hash_of(FILES)}\n"
    )
    monkeypatch.setitem(PROJECTS, "kwok", replace(PROJECTS["kwok"], modules=tmp_path / "modules"))


@pytest.fixture
def proxied(registry: "Registry") -> str:
    """Address of a module proxy with KWOK."""
    offer(registry, FILES)
    return registry.url


def offer(registry: "Registry", files: Mapping[str, bytes]) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    registry.documents["/sigs.k8s.io/kwok/@v/v0.7.0.zip"] = packed.getvalue()


async def failure_of(made: Binaries) -> dict[str, str]:
    with pytest.raises(NotObtainableError) as failure:
        await made.module_dir("kwok")
    return dict(failure.value.attempts)


async def test_module_dir_returns_the_folder_in_the_cache_of_go(
    binaries: "Making", go: "FakeGo", tmp_path: Path, progress: "RecordedProgress"
) -> None:
    answer = json.dumps({"Dir": "/go/pkg/mod/sigs.k8s.io/kwok", "Sum": hash_of(FILES)})
    go.answers_mod_with(
        f"""echo '{answer}'; echo "$*" > {tmp_path}/arguments; ls > {tmp_path}/files"""
    )
    folder = await binaries(go=go).module_dir("kwok")
    assert folder == Path("/go/pkg/mod/sigs.k8s.io/kwok")
    assert (tmp_path / "arguments").read_text() == f"mod download -json {KWOK}\n"
    assert (tmp_path / "files").read_text() == "go.mod\ngo.sum\n"
    assert progress.events == []


async def test_a_module_with_another_hash_fails(binaries: "Making", go: "FakeGo") -> None:
    go.answers_mod_with("""echo '{"Dir": "/go", "Sum": "h1:forged"}'""")
    tried = await failure_of(binaries(go=go, GOPROXY="off"))
    assert tried["go mod download"] == (
        f"{KWOK} is damaged or forged: its hash is h1:forged, and go.sum has {hash_of(FILES)}"
    )


async def test_module_dir_downloads_once_from_a_proxy_without_go(
    binaries: "Making", registry: "Registry", proxied: str, progress: "RecordedProgress"
) -> None:
    made = binaries(GOPROXY=f"{proxied},direct")
    folder = await made.module_dir("kwok")
    assert (folder / "kustomize" / "stage.yaml").read_text() == "kind: Stage\n"
    assert folder == made.cache.root / "sources" / KWOK
    assert await made.module_dir("kwok") == folder
    assert len(registry.requests) == 1
    assert progress.events == [
        ("started", KWOK, "module proxy"),
        ("finished", KWOK, "module proxy"),
    ]
    assert list((made.cache.root / "work").iterdir()) == []


@pytest.mark.parametrize("change", ["changed", "added", "removed"])
async def test_a_damaged_source_is_replaced(change: str, binaries: "Making", proxied: str) -> None:
    made = binaries(GOPROXY=proxied)
    folder = await made.module_dir("kwok")
    match change:
        case "changed":
            (folder / "LICENSE").write_text("mine")
        case "added":
            (folder / "new").write_text("new")
        case _:
            (folder / "LICENSE").unlink()
    assert await made.module_dir("kwok") == folder
    assert (folder / "LICENSE").read_text() == "Apache\n"
    assert not (folder / "new").exists()


async def test_a_forged_module_fails(
    binaries: "Making", registry: "Registry", proxied: str
) -> None:
    forged = {**FILES, f"{KWOK}/LICENSE": b"mine\n"}
    offer(registry, forged)
    made = binaries(GOPROXY=proxied)
    tried = await failure_of(made)
    assert tried["module proxy"] == (
        f"{KWOK} is damaged or forged: its hash is {hash_of(forged)}, and go.sum has"
        f" {hash_of(FILES)}"
    )
    assert not (made.cache.root / "sources").exists()


async def test_an_invalid_zip_file_fails(
    binaries: "Making", registry: "Registry", proxied: str
) -> None:
    registry.documents["/sigs.k8s.io/kwok/@v/v0.7.0.zip"] = b"<html>"
    tried = await failure_of(binaries(GOPROXY=proxied))
    assert tried["module proxy"] == f"{KWOK} is damaged: the download is not a zip file"


async def test_the_error_lists_all_attempted_sources(
    binaries: "Making", registry: "Registry", proxied: str
) -> None:
    registry.documents.clear()
    with pytest.raises(NotObtainableError) as failure:
        await binaries(GOPROXY=proxied).module_dir("kwok")
    assert str(failure.value) == (
        f"The source of {KWOK} is not available. Attempts:\n"
        "  go mod download: PATH has no go command\n"
        f"  module proxy: {proxied} answers 404 for {KWOK}\n"
        "Install Go 1.24.0 or later (https://go.dev/dl), or allow access to a Go module proxy"
        " (GOPROXY can name another than proxy.golang.org)"
    )


@pytest.mark.parametrize(
    ("name", "version", "reason"),
    [
        ("etcd", None, "has no sources 'etcd' (known: kubernetes, cluster-api,"),
        ("cluster-api/other", None, "has no sources 'cluster-api/other'"),
        ("kwok", "v0.1.0", "v0.1.0 is not a KWOK version that Capelin provides (known: v0.7.0)"),
    ],
)
async def test_module_dir_rejects_unknown_sources(
    name: str, version: str | None, reason: str, binaries: "Making"
) -> None:
    with pytest.raises(UnknownComponentError, match=re.escape(reason)):
        await binaries().module_dir(name, version)


def test_first_proxy_returns_the_first_proxy_of_a_list() -> None:
    assert first_proxy("") == "https://proxy.golang.org"
    assert first_proxy("https://a.example/,https://b.example") == "https://a.example"
    assert first_proxy("direct|http://b.example") == "http://b.example"
    with pytest.raises(SourceFailedError, match=r"^GOPROXY=off does not contain a module proxy$"):
        first_proxy("off")


def test_the_hash_of_a_folder_equals_the_hash_of_its_module(tmp_path: Path) -> None:
    assert tree_hash(FILES.items()) == hash_of(FILES)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text("c")
    module = Module("m", "v1.0.0", tmp_path / "a")
    assert folder_hash(tmp_path / "a", module) == hash_of({"m@v1.0.0/b": b"c"})


async def test_a_decompression_bomb_in_a_module_fails(
    binaries: "Making", proxied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "capelin_embedded.binaries.module_source._MAX_UNPACKED_BYTES", 10, raising=False
    )
    tried = await failure_of(binaries(GOPROXY=proxied))
    assert tried["module proxy"] == f"{KWOK} unpacks to more than 10 bytes"


async def test_a_module_with_files_outside_of_its_folder_fails(
    binaries: "Making", registry: "Registry", tmp_path: Path
) -> None:
    foreign = {**FILES, "../../evil": b"x"}
    offer(registry, foreign)
    folder = tmp_path / "modules" / "kwok" / "v0.7.0"
    (folder / "go.sum").write_text(f"sigs.k8s.io/kwok v0.7.0 {hash_of(foreign)}\n")
    tried = await failure_of(binaries(GOPROXY=registry.url))
    assert tried["module proxy"] == f"{KWOK} has files outside of its folder"
