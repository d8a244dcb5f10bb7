"""Images: that two builds are the same, what a container starts with, what is refused."""

import hashlib
import json
import os
import tarfile
import time
from pathlib import Path

import pytest
from capelin_release.bundle import installation_entries
from capelin_release.debian import Lock
from capelin_release.downloads import Downloads
from capelin_release.image import BuiltImage, ImageBuilder, ImageError, ImageSpec, Source
from capelin_release.oci import Store
from capelin_release.programs import ProgramError
from capelin_release.wheels import Target

from tools.release.tests.packages import a_deb, a_wheel, an_elf

SPEC = ImageSpec(name="fish", package="fish", module="fish", description="A fish.")
PROJECT = '[project]\nname = "fish"\nversion = "1.0"\nrequires-python = ">=3.11"\n'
LOCK = """
version = 1
requires-python = ">=3.11"

[[package]]
name = "fish"
version = "1.0"
source = { editable = "." }
dependencies = [{ name = "frame" }]

[[package]]
name = "frame"
version = "1.0"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://pypi/frame-1.0-py3-none-any.whl", hash = "sha256:SHA" }]
"""


def builder(folder: Path, own: bytes | None = None, frame: bytes = b"") -> ImageBuilder:
    """A builder whose packages are all there."""
    downloads = folder / "downloads"
    packages = [
        a_deb(downloads, "base-files", {"./usr/lib/os-release": b"ID=debian\n"}),
        a_deb(downloads, "ca-certificates", {"./usr/share/ca-certificates/a.crt": b"A"}),
        a_deb(
            downloads,
            "python3.11",
            {"./usr/bin/python3.11": an_elf(62)},
            modes={"./usr/bin/python3.11": 0o755},
            version="3.11.2-6",
        ),
    ]
    wheel = a_wheel("frame", {"frame/__init__.py": frame})
    digest = hashlib.sha256(wheel).hexdigest()
    (downloads / digest).write_bytes(wheel)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "uv.lock").write_text(LOCK.replace("SHA", digest))
    mine = folder / "fish-1.0-py3-none-any.whl"
    mine.write_bytes(own or a_wheel("fish", {"fish/__main__.py": b"print()"}))
    source = Source(
        version="1.0.0", revision="abc", time=1_795_000_000, project=folder, wheels=[mine]
    )
    return ImageBuilder(
        Store(folder / "store"),
        source,
        Downloads(downloads),
        Lock("20261122T080000Z", {"amd64": packages}),
    )


def build(folder: Path) -> BuiltImage:
    folder.mkdir()
    return builder(folder).build(SPEC, "amd64")


def test_two_builds_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(tmp_path / "first")
    monkeypatch.setattr(time, "time", lambda: 4_000_000_000.0)
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    before = os.umask(0o077)
    try:
        second = build(tmp_path / "second")
    finally:
        os.umask(before)

    assert [x.diff_id for x in first.image.layers] == [x.diff_id for x in second.image.layers]
    assert first.image.manifest == second.image.manifest


def test_a_container_starts_the_module_as_an_ordinary_user(tmp_path: Path) -> None:
    built = build(tmp_path / "folder")
    store = Store(tmp_path / "folder" / "store")
    config = store.read_json(built.image.config.digest)

    assert (config["architecture"], config["os"]) == ("amd64", "linux")
    assert config["config"]["User"] == "65532:65532"
    assert config["config"]["Entrypoint"] == ["/usr/bin/python3", "-m", "fish"]
    assert config["config"]["Labels"]["org.opencontainers.image.revision"] == "abc"
    assert config["rootfs"]["diff_ids"] == [layer.diff_id for layer in built.image.layers]
    assert [layer.name for layer in built.image.layers] == ["debian", "wheels", "application"]
    site = Target("amd64", "3.11.2").packages_folder
    assert f"{site}/fish/__main__.py" in built.files
    assert f"{site}/frame/__init__.py" in built.files
    assert built.files["etc/passwd"].package == built.package


def test_layers_of_others_do_not_change_with_the_commit(tmp_path: Path) -> None:
    one = builder(tmp_path)
    first = one.build(SPEC, "amd64")
    later = Source(
        version="1.0.1",
        revision="def",
        time=1_796_000_000,
        project=one.source.project,
        wheels=one.source.wheels,
    )
    second = ImageBuilder(one.store, later, one.downloads, one.debian).build(SPEC, "amd64")

    shared = [a == b for a, b in zip(first.image.layers, second.image.layers, strict=True)]
    assert shared == [True, True, False]


def test_an_image_with_a_secret_is_not_built(tmp_path: Path) -> None:
    key = b"-----BEGIN PRIVATE KEY-----\n" + b"A" * 64
    with pytest.raises(ImageError, match=r"layer wheels .*frame/__init__.py .*a private key"):
        builder(tmp_path, frame=key).build(SPEC, "amd64")


def test_an_image_with_a_program_for_another_processor_is_not_built(tmp_path: Path) -> None:
    wheel = a_wheel("fish", {"fish/native.so": an_elf(183)})
    with pytest.raises(ImageError, match=r"layer application .*another processor"):
        builder(tmp_path, own=wheel).build(SPEC, "amd64")


def test_a_wheel_that_was_not_built_is_named(tmp_path: Path) -> None:
    made = builder(tmp_path)
    made.source = Source(version="1", revision="", time=0, project=made.source.project, wheels=[])
    with pytest.raises(ImageError, match="No wheel was built of fish"):
        made.build(SPEC, "amd64")


def test_forged_program_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho other > "$2"\n')
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:{os.environ['PATH']}")
    spec = ImageSpec(name="fish", package="fish", module="fish", description="", programs=("kwok",))
    with pytest.raises(ProgramError, match=r"kwok v0.7.0 for amd64 was built with other bytes"):
        builder(tmp_path).build(spec, "amd64")


def test_charts_and_component_files_go_into_the_bundle(tmp_path: Path) -> None:
    out = tmp_path / "out"
    folder = out / "clusterctl" / "infrastructure-fish" / "v1.0.0"
    folder.mkdir(parents=True)
    for name in ("infrastructure-components.yaml", "metadata.yaml"):
        (folder / name).write_text("kind: X\n")
    chart = tmp_path / "Chart.yaml"
    chart.write_text("name: fish\nversion: 1.0.0\n")
    with tarfile.open(out / "fish-1.0.0.tgz", "w:gz") as archive:
        archive.add(chart, "fish/Chart.yaml")
    store = Store(tmp_path / "store")

    named = {entry.name: entry for entry in installation_entries(store, out, 0)}
    assert list(named) == ["charts/fish:1.0.0", "components/infrastructure-fish:v1.0.0"]
    manifest = store.read_json(named["components/infrastructure-fish:v1.0.0"].digest)
    titles = [x["annotations"]["org.opencontainers.image.title"] for x in manifest["layers"]]
    assert titles == ["infrastructure-components.yaml", "metadata.yaml"]
    assert json.loads(store.path(manifest["config"]["digest"]).read_bytes()) == {}
