"""Wheels: selection from a lock file, and unpacked files."""

import hashlib
from collections.abc import Generator
from pathlib import Path

import pytest
from capelin.errors import UnfitMachineError
from capelin_release.downloads import Downloads
from capelin_release.files import Layer
from capelin_release.wheels import (
    Requirements,
    Target,
    WheelError,
    add_wheel,
    anchor_paths,
    build_wheels,
    license_of,
    locked_requirements,
    package_of,
)

from tools.release.tests.packages import a_wheel, serving

AMD64, ARM64 = Target("amd64", "3.11.2"), Target("arm64", "3.11.2")
SITE = "usr/local/lib/python3.11/dist-packages"
PROJECT = """
[project]
name = "fish"
version = "1.0"
requires-python = ">=3.11"
"""
LOCK = """
version = 1
requires-python = ">=3.11"

[[package]]
name = "fish"
version = "1.0"
source = { editable = "." }
dependencies = [
    { name = "frame", extra = ["fast"] },
    { name = "windows-only", marker = "sys_platform == 'win32'" },
]

[package.optional-dependencies]
windows = [{ name = "windows-only" }]

[[package]]
name = "frame"
version = "1.0"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://pypi/frame-1.0-py3-none-any.whl", hash = "sha256:f0+" }]

[package.optional-dependencies]
fast = [{ name = "native" }]
slow = [{ name = "windows-only" }]

[[package]]
name = "native"
version = "2.0"
source = { registry = "https://pypi.org/simple" }
wheels = [
    { url = "https://pypi/native-2.0-cp311-cp311-manylinux_2_17_x86_64.whl", hash = "sha256:01+" },
    { url = "https://pypi/native-2.0-cp311-abi3-manylinux_2_34_x86_64.whl", hash = "sha256:02+" },
    { url = "https://pypi/native-2.0-cp311-abi3-manylinux_2_34_aarch64.whl", hash = "sha256:03+" },
    { url = "https://pypi/native-2.0-cp311-cp311-manylinux_2_39_x86_64.whl", hash = "sha256:04+" },
    { url = "https://pypi/native-2.0-cp312-cp312-manylinux_2_17_x86_64.whl", hash = "sha256:05+" },
    { url = "https://pypi/native-2.0-cp311-cp311-musllinux_1_2_x86_64.whl", hash = "sha256:06+" },
]

[[package]]
name = "windows-only"
version = "1.0"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://pypi/windows_only-1.0-cp311-cp311-win_amd64.whl", hash = "sha256:07+" }]
""".replace("+", "0" * 62)


SOURCES = """
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
"""


@pytest.fixture
def downloads(tmp_path: Path) -> Downloads:
    return Downloads(tmp_path / "downloads")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the files of a project, whose checkout is `home/fish`."""
    tree = tmp_path / "copy" / "tree"
    tree.mkdir(parents=True)
    (tree / "pyproject.toml").write_text(PROJECT)
    (tree / "uv.lock").write_text(LOCK)
    return tree


def test_the_best_wheel_for_the_platform_is_selected(project: Path, downloads: Downloads) -> None:
    amd64 = locked_requirements(project, "fish", AMD64, downloads)
    arm64 = locked_requirements(project, "fish", ARM64, downloads)
    assert [wheel.sha256[:2] for wheel in amd64.wheels] == ["f0", "01"]
    assert [wheel.sha256[:2] for wheel in arm64.wheels] == ["f0", "03"]
    assert amd64.folders == {"fish": project}


def test_a_package_without_a_fitting_wheel_is_an_error(project: Path, downloads: Downloads) -> None:
    lock = project / "uv.lock"
    lock.write_text(LOCK.replace(", marker = \"sys_platform == 'win32'\"", ""))
    with pytest.raises(WheelError, match=r"wheel for arm64 and Python 3.11.*windows-only"):
        locked_requirements(project, "fish", ARM64, downloads)
    with pytest.raises(WheelError, match=r"(?s)all that whale needs.*whale"):
        locked_requirements(project, "whale", AMD64, downloads)


def required(project: Path, downloads: Downloads, source: str) -> Requirements:
    """What the project needs when uv.lock takes the package `frame` from this source."""
    lock = project / "uv.lock"
    lock.write_text(f"{SOURCES}{source}\n")
    anchor_paths(lock, project.parents[1] / "home" / "fish")
    return locked_requirements(project, "fish", AMD64, downloads)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The wheel of `frame` in a folder beside the checkout."""
    wheel = tmp_path / "home" / "wheels" / "frame-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(a_wheel("frame", {"frame/__init__.py": b""}))
    return wheel


@pytest.mark.parametrize("kind", ["editable", "directory"])
@pytest.mark.parametrize("relative", [True, False])
def test_a_path_source_is_a_folder_to_build(
    project: Path, downloads: Downloads, kind: str, relative: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "home" / "frame"
    path = "../frame" if relative else folder
    needed = required(project, downloads, f'source = {{ {kind} = "{path}" }}')
    assert needed.folders == {"fish": project, "frame": folder}
    assert needed.wheels == []


def test_a_path_in_the_project_is_that_of_the_copy(project: Path, downloads: Downloads) -> None:
    needed = required(project, downloads, 'source = { editable = "libraries/frame" }')
    assert needed.folders["frame"] == project / "libraries" / "frame"


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("form", ["folder", "file"])
def test_a_wheel_of_a_folder_is_taken_as_it_is(
    project: Path, downloads: Downloads, wheel: Path, form: str, relative: bool
) -> None:
    folder = "../wheels" if relative else wheel.parent
    name = wheel.name if relative else wheel
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    source = (
        f'source = {{ registry = "{folder}" }}\nwheels = [{{ path = "{name}" }}]'
        if form == "folder"
        else f'source = {{ path = "{folder}/{wheel.name}" }}\n'
        f'wheels = [{{ filename = "{wheel.name}", hash = "sha256:{digest}" }}]'
    )
    (pinned,) = required(project, downloads, source).wheels
    assert (pinned.name, pinned.sha256) == (wheel.name, digest)
    assert downloads.fetch([pinned])[digest].read_bytes() == wheel.read_bytes()


def test_a_wheel_that_changed_since_it_was_locked_is_refused(
    project: Path, downloads: Downloads, wheel: Path
) -> None:
    source = f"""source = {{ path = "../wheels/{wheel.name}" }}
wheels = [{{ filename = "{wheel.name}", hash = "sha256:{"0" * 64}" }}]"""
    with pytest.raises(WheelError, match=r"is not the wheel that uv.lock names"):
        required(project, downloads, source)


@pytest.fixture
def page(wheel: Path) -> Generator[str]:
    with serving({f"/{wheel.name}": wheel.read_bytes()}) as url:
        yield url


def test_a_wheel_of_a_page_without_hashes_is_downloaded(
    project: Path, downloads: Downloads, wheel: Path, page: str
) -> None:
    source = f"""source = {{ registry = "{page}/" }}
wheels = [{{ url = "{page}/{wheel.name}" }}]"""
    (pinned,) = required(project, downloads, source).wheels
    assert pinned.sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_a_wheel_of_an_index_is_pinned(project: Path, downloads: Downloads) -> None:
    url = "https://wheels.example/frame-1.0-py3-none-any.whl"
    source = f"""source = {{ registry = "https://wheels.example/simple" }}
wheels = [{{ url = "{url}", hash = "sha256:{"f" * 64}" }}]"""
    (pinned,) = required(project, downloads, source).wheels
    assert (pinned.urls, pinned.sha256) == ((url,), "f" * 64)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('sdist = { url = "https://a.example/frame-1.0.tar.gz", hash = "sha256:SHA" }', "no wheel"),
        (
            'wheels = [{ url = "https://a/frame-1.0-py3-none-any.whl", hash = "md5:MD5" }]',
            "no SHA-256",
        ),
        (
            'wheels = [{ path = "frame-1.0-py3-none-any.whl" }]',
            r"(?s)all that fish needs.*frame-1.0",
        ),
    ],
)
def test_a_package_that_cannot_be_released_is_named(
    project: Path, downloads: Downloads, source: str, problem: str
) -> None:
    registry = "../missing" if "path" in source else "https://a.example/simple"
    source = source.replace(":SHA", f":{'f' * 64}").replace(":MD5", f":{'f' * 32}")
    with pytest.raises(WheelError, match=problem):
        required(project, downloads, f'source = {{ registry = "{registry}" }}\n{source}')


def test_a_wheel_names_its_package_and_its_licence(wheel: Path) -> None:
    assert (package_of(wheel), license_of(wheel)) == ("frame", "MIT")


def test_a_folder_that_is_no_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match=r"has no Python package that can be built"):
        build_wheels(tmp_path, tmp_path / "out", 0, "--wheel")


def test_a_machine_without_uv_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnfitMachineError, match=r"uv is not installed\. Run pip install uv"):
        build_wheels(tmp_path, tmp_path / "out", 0, "--wheel")


def test_a_wheel_is_unpacked_without_scripts_and_bytecode(tmp_path: Path) -> None:
    layer = Layer("wheels", 0)
    files = {
        "fish/__init__.py": b"",
        "fish/native.so": b"elf",
        "fish/__pycache__/old.cpython-311.pyc": b"",
        "fish-1.0.data/purelib/fish/data.txt": b"data",
        "fish-1.0.data/scripts/fish": b"#!python",
    }
    wheel = tmp_path / "fish.whl"
    wheel.write_bytes(a_wheel("fish", files))
    add_wheel(layer, wheel, AMD64)

    unpacked = [path.removeprefix(f"{SITE}/") for path in layer.files]
    assert sorted(unpacked) == [
        "fish-1.0.dist-info/METADATA",
        "fish-1.0.dist-info/RECORD",
        "fish/__init__.py",
        "fish/data.txt",
        "fish/native.so",
    ]
    assert {file.mode for file in layer.files.values()} == {0o644}
    (package,) = layer.packages()
    assert (package.url, package.licenses) == ("pkg:pypi/fish@1.0", ("MIT",))


def test_a_file_that_differs_from_the_record_is_rejected(tmp_path: Path) -> None:
    record = b"fish/__init__.py,sha256=AAAA,8\n"
    wheel = tmp_path / "fish.whl"
    wheel.write_bytes(a_wheel("fish", {"fish/__init__.py": b"fish = 1"}, record=record))
    with pytest.raises(WheelError, match=r"fish/__init__.py does not match its RECORD"):
        add_wheel(Layer("wheels", 0), wheel, AMD64)


def test_a_wheel_writes_nothing_outside_of_itself(tmp_path: Path) -> None:
    wheel = tmp_path / "fish.whl"
    wheel.write_bytes(a_wheel("fish", {"../../etc/passwd": b"x"}))
    with pytest.raises(WheelError, match="outside of itself"):
        add_wheel(Layer("wheels", 0), wheel, AMD64)
