"""Wheels: selection from a lock file, and unpacked files."""

from pathlib import Path

import pytest
from capelin_release.files import Layer
from capelin_release.wheels import (
    Target,
    WheelError,
    add_wheel,
    locked_requirements,
)

from tools.release.tests.packages import a_wheel

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


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "uv.lock").write_text(LOCK)
    return tmp_path


def test_the_best_wheel_for_the_platform_is_selected(project: Path) -> None:
    amd64 = locked_requirements(project, "fish", AMD64)
    arm64 = locked_requirements(project, "fish", ARM64)
    assert [wheel.sha256[:2] for wheel in amd64.wheels] == ["f0", "01"]
    assert [wheel.sha256[:2] for wheel in arm64.wheels] == ["f0", "03"]
    assert amd64.own == ["fish"]


def test_a_package_without_a_fitting_wheel_is_an_error(project: Path) -> None:
    lock = project / "uv.lock"
    lock.write_text(LOCK.replace(", marker = \"sys_platform == 'win32'\"", ""))
    with pytest.raises(WheelError, match=r"wheel for arm64 and Python 3.11.*windows-only"):
        locked_requirements(project, "fish", ARM64)
    with pytest.raises(WheelError, match="has no package whale"):
        locked_requirements(project, "whale", AMD64)


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
