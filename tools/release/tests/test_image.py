"""Images: reproducible builds, start command and rejected content."""

import hashlib
import os
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from capelin_release.build import installation_entries
from capelin_release.commit import Commit
from capelin_release.debian import Lock
from capelin_release.downloads import Downloads
from capelin_release.image import MANAGERS, BuiltImage, ImageBuilder, ImageError, manager_image
from capelin_release.oci import REFERENCE, Store
from capelin_release.programs import LockedProgram, ProgramError
from capelin_release.project import ARCHITECTURES, ImageSpec, Release, ReleaseSettings
from capelin_release.wheels import Target, anchor_paths

from tools.release.tests.packages import a_deb, a_wheel, an_elf

MACHINES = {"amd64": 62, "arm64": 183}
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


def a_release(folder: Path, version: str = "1.0.0", time: int = 1_795_000_000) -> Release:
    commit = Commit(folder, "abc", time, ())
    settings = ReleaseSettings(registry="example.com")
    return Release(version, commit, settings, folder, folder / "out", Store(folder / "store"))


def builder(folder: Path, own: bytes | None = None, frame: bytes = b"") -> ImageBuilder:
    """A builder with all packages."""
    folder.mkdir(exist_ok=True)
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
    return ImageBuilder(
        a_release(folder),
        [mine],
        Downloads(downloads),
        Lock("20261122T080000Z", {"amd64": packages}),
    )


def build(folder: Path) -> BuiltImage:
    return builder(folder).build(SPEC, "amd64")


def test_two_builds_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(tmp_path / "first")
    monkeypatch.setattr(time, "time", lambda: 4_000_000_000.0)
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    before = os.umask(0o077)
    try:
        second = build(tmp_path / "second")
    finally:
        os.umask(before)

    assert [x.diff_id for x in first.layers] == [x.diff_id for x in second.layers]
    assert first.manifest == second.manifest


def test_a_container_starts_the_module_as_an_unprivileged_user(tmp_path: Path) -> None:
    built = build(tmp_path / "folder")
    store = Store(tmp_path / "folder" / "store")
    config = store.read_json(store.read_json(built.manifest)["config"])

    assert (config["architecture"], config["os"]) == ("amd64", "linux")
    assert config["config"]["User"] == "65532:65532"
    assert config["config"]["Entrypoint"] == ["/usr/bin/python3", "-m", "fish"]
    labels = {key.rpartition(".")[2]: value for key, value in config["config"]["Labels"].items()}
    assert labels["revision"] == "abc"
    assert labels["licenses"] == "MIT"
    assert config["rootfs"]["diff_ids"] == [stored.diff_id for stored in built.layers]
    assert [stored.layer.name for stored in built.layers] == ["debian", "wheels", "application"]
    site = Target("amd64", "3.11.2").packages_folder
    assert f"{site}/fish/__main__.py" in built.files
    assert f"{site}/frame/__init__.py" in built.files
    assert built.files["etc/passwd"].package == built.package


def test_layers_of_dependencies_do_not_change_with_the_commit(tmp_path: Path) -> None:
    one = builder(tmp_path)
    first = one.build(SPEC, "amd64")
    later = a_release(tmp_path, "1.0.1", 1_796_000_000)
    second = ImageBuilder(later, one.wheels, one.downloads, one.debian).build(SPEC, "amd64")

    shared = [a == b for a, b in zip(first.layers, second.layers, strict=True)]
    assert shared == [True, True, False]


def test_an_image_with_a_secret_is_not_built(tmp_path: Path) -> None:
    key = b"-----BEGIN PRIVATE KEY-----\n" + b"A" * 64
    with pytest.raises(ImageError, match=r"layer wheels .*frame/__init__.py .*a private key"):
        builder(tmp_path, frame=key).build(SPEC, "amd64")


def test_an_image_with_a_binary_of_another_architecture_is_not_built(tmp_path: Path) -> None:
    wheel = a_wheel("fish", {"fish/native.so": an_elf(183)})
    with pytest.raises(ImageError, match=r"layer application .*another processor"):
        builder(tmp_path, own=wheel).build(SPEC, "amd64")


def test_an_error_names_a_missing_wheel(tmp_path: Path) -> None:
    made = builder(tmp_path)
    made.wheels = []
    with pytest.raises(ImageError, match="No wheel was built of fish"):
        made.build(SPEC, "amd64")


def test_a_package_of_another_folder_is_asked_for(tmp_path: Path) -> None:
    made = builder(tmp_path / "fish")
    lock = tmp_path / "fish" / "uv.lock"
    text = lock.read_text().partition("wheels = ")[0]
    lock.write_text(text.replace('registry = "https://pypi.org/simple"', 'editable = "../frame"'))
    anchor_paths(lock, tmp_path / "fish")
    settings = ReleaseSettings(registry="example.com", images=(SPEC,), architectures=("amd64",))
    made.release = replace(made.release, settings=settings)
    assert made.path_sources() == {"frame": tmp_path / "frame"}
    wheel = tmp_path / "frame-1.0-py3-none-any.whl"
    wheel.write_bytes(a_wheel("frame", {"frame/__init__.py": b""}))
    made.wheels = [*made.wheels, wheel]
    assert made.path_sources() == {}
    site = Target("amd64", "3.11.2").packages_folder
    assert f"{site}/frame/__init__.py" in made.build(SPEC, "amd64").files


def test_forged_program_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(
        '#!/bin/sh\n[ "$1" = env ] && echo go1.99.0 && exit\n'
        'while [ "$1" != -o ]; do shift; done\nmkdir "$2" && echo other > "$2/kwok"\n'
    )
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:{os.environ['PATH']}")
    spec = ImageSpec(name="fish", package="fish", module="fish", description="", programs=("kwok",))
    with pytest.raises(ProgramError, match=r"kwok v0.7.0 for amd64 was built with other bytes"):
        builder(tmp_path).build(spec, "amd64")


def test_the_bundle_contains_charts_and_component_files(tmp_path: Path) -> None:
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

    entries = installation_entries(store, out, 0)
    named = {entry["annotations"][REFERENCE]: entry for entry in entries}
    assert list(named) == ["charts/fish:1.0.0", "components/infrastructure-fish:v1.0.0"]
    manifest = store.read_json(named["components/infrastructure-fish:v1.0.0"])
    titles = [x["annotations"]["org.opencontainers.image.title"] for x in manifest["layers"]]
    assert titles == ["infrastructure-components.yaml", "metadata.yaml"]
    assert store.read_json(manifest["config"]) == {}


def a_manager(folder: Path, machine: int, created: int = 0) -> tuple[Store, BuiltImage]:
    """The image of a manager whose binary is only an ELF header."""
    downloads = folder / "downloads"
    downloads.mkdir(parents=True)
    digest = hashlib.sha256(an_elf(machine)).hexdigest()
    (downloads / digest).write_bytes(an_elf(machine))
    program = LockedProgram(MANAGERS[0], "v1.14.2", "go1.26.8", "", {"arm64": digest})
    release = a_release(folder, time=created)
    return release.store, manager_image(release, program, "arm64", Downloads(downloads))


def test_the_image_of_a_manager_contains_one_binary(tmp_path: Path) -> None:
    store, image = a_manager(tmp_path, MACHINES["arm64"])
    config = store.read_json(store.read_json(image.manifest)["config"])["config"]
    assert (config["User"], config["Entrypoint"]) == ("65532:65532", ["/manager"])
    assert image.manifest["platform"]["architecture"] == "arm64"
    assert image.stem == "cluster-api-controller-v1.14.2-linux-arm64"
    (package,) = image.bill["components"]
    assert package["purl"] == "pkg:golang/sigs.k8s.io/cluster-api@v1.14.2"
    assert [file["name"] for file in package["components"]] == ["/manager"]


def test_a_new_commit_does_not_change_the_layer_of_a_manager(tmp_path: Path) -> None:
    first, second = (
        a_manager(tmp_path / str(created), MACHINES["arm64"], created)[1] for created in (1, 2)
    )
    assert [x.descriptor for x in first.layers] == [x.descriptor for x in second.layers]
    assert first.manifest != second.manifest


def test_a_manager_of_another_architecture_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="a program for another processor"):
        a_manager(tmp_path, MACHINES["amd64"])


@pytest.mark.parametrize("name", MANAGERS)
def test_every_manager_is_locked(name: str) -> None:
    program = LockedProgram.read(name)
    assert program.sha256.keys() == {*ARCHITECTURES}
    assert program.package.url == "pkg:golang/sigs.k8s.io/cluster-api@v1.14.2"
