"""Debian packages: the lock file and the unpacked files."""

from importlib.resources import files
from pathlib import Path

import pytest
from capelin_release.debian import Lock, LockedPackage, PackageError, debian_layer, read_ar
from capelin_release.downloads import DownloadError, Downloads
from capelin_release.files import PathConflictError
from capelin_release.oci import timestamp

from tools.lock_debian import lock_text, read_packages
from tools.release.tests.packages import a_deb

CERTIFICATES = "./usr/share/ca-certificates/mozilla"


@pytest.fixture
def packages(tmp_path: Path) -> list[LockedPackage]:
    folder = tmp_path / "downloads"
    return [
        a_deb(folder, "base-files", {"./": None, "./usr/lib/os-release": b"ID=debian\n"}),
        a_deb(
            folder,
            "ca-certificates",
            {f"{CERTIFICATES}/b.crt": b"B\n", f"{CERTIFICATES}/a.crt": b"A\n\n"},
        ),
        a_deb(
            folder,
            "libc6",
            {
                "./lib/x86_64-linux-gnu/libc.so.6": b"libc",
                "./lib64": None,
                "./lib64/ld-linux-x86-64.so.2": "/lib/x86_64-linux-gnu/ld.so",
                "./usr/share/doc/libc6/copyright": b"Format: x\n\nFiles: *\nLicense: LGPL-2.1+\n",
                "./usr/share/doc/libc6/NEWS.gz": b"news",
                "./usr/share/man/man1/ldd.1.gz": b"manual",
            },
        ),
        a_deb(
            folder,
            "python3.11",
            {"./usr/bin/python3.11": b"python"},
            modes={"./usr/bin/python3.11": 0o755},
            version="3.11.2-6+deb12u9",
        ),
    ]


@pytest.fixture
def lock(packages: list[LockedPackage]) -> Lock:
    return Lock("20261122T080000Z", {"amd64": packages})


@pytest.fixture
def downloads(tmp_path: Path) -> Downloads:
    return Downloads(tmp_path / "downloads")


def test_files_go_where_the_merge_of_usr_puts_them(lock: Lock, downloads: Downloads) -> None:
    files = debian_layer(lock, "amd64", downloads).files

    assert files["usr/lib/x86_64-linux-gnu/libc.so.6"].read() == b"libc"
    assert (files["lib"].kind, files["lib"].target) == ("link", "usr/lib")
    assert (files["lib64"].kind, files["lib64"].target) == ("link", "usr/lib64")
    assert "sbin" not in files, "the folder is empty"


def test_the_image_contains_package_records_for_scanners(lock: Lock, downloads: Downloads) -> None:
    files = debian_layer(lock, "amd64", downloads).files

    record = files["var/lib/dpkg/status.d/libc6"].read().decode()
    assert record.splitlines()[:3] == [
        "Package: libc6",
        "Status: install ok installed",
        "Version: 1.0-1",
    ]
    sums = files["var/lib/dpkg/status.d/libc6.md5sums"].read().decode()
    assert "lib/x86_64-linux-gnu/libc.so.6" in sums
    assert "ldd.1" not in sums, "omitted files are not recorded"


def test_documentation_is_omitted_and_licences_stay(lock: Lock, downloads: Downloads) -> None:
    layer = debian_layer(lock, "amd64", downloads)

    assert "usr/share/doc/libc6/copyright" in layer.files
    assert "usr/share/doc/libc6/NEWS.gz" not in layer.files
    assert not [path for path in layer.files if "/man" in path]
    licenses = {package.name: package.licenses for package in layer.packages()}
    assert licenses["libc6"] == ("LGPL-2.1+",)


def test_ca_certificates_are_bundled_like_the_package_does(
    lock: Lock, downloads: Downloads
) -> None:
    files = debian_layer(lock, "amd64", downloads).files

    bundle = files["etc/ssl/certs/ca-certificates.crt"]
    assert bundle.read() == b"A\nB\n"
    assert bundle.package.name == "ca-certificates"
    assert files["usr/lib/ssl/cert.pem"].target == "/etc/ssl/certs/ca-certificates.crt"
    assert files["usr/bin/python3"].target == "python3.11"
    assert lock.python == "3.11.2"


def test_a_damaged_package_is_rejected(
    lock: Lock, packages: list[LockedPackage], downloads: Downloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = downloads.folder / packages[2].sha256
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")

    async def serve(_: object) -> bytes:
        return b"!<arch>\n"

    monkeypatch.setattr("capelin_release.downloads._first", serve)
    with pytest.raises(DownloadError, match=r"libc6 1.0-1 is damaged or forged"):
        debian_layer(lock, "amd64", downloads)


def test_two_packages_do_not_share_a_file(lock: Lock, downloads: Downloads) -> None:
    twin = a_deb(downloads.folder, "twin", {"./usr/lib/os-release": b"other"})
    packages = [*lock.packages["amd64"], twin]
    with pytest.raises(PathConflictError, match="base-files and twin"):
        debian_layer(Lock(lock.snapshot, {"amd64": packages}), "amd64", downloads)


def test_an_unreadable_package_is_an_error(lock: Lock, downloads: Downloads) -> None:
    with pytest.raises(PackageError, match=r"No packages are locked for riscv64\. Known: amd64"):
        debian_layer(lock, "riscv64", downloads)
    with pytest.raises(PackageError, match="not a Debian package"):
        list(read_ar(b"PK"))
    strange = a_deb(downloads.folder, "strange", {}, suffix=".zst")
    with pytest.raises(PackageError, match=r"strange has no data.tar.xz, but .*data.tar.zst"):
        debian_layer(Lock(lock.snapshot, {"amd64": [strange]}), "amd64", downloads)


def test_apt_lists_packages_with_their_versions_and_archives() -> None:
    mirror = "https://mirror.example.com"
    digest = "0" * 64
    text = (
        f"'{mirror}/debian/pool/main/z/zlib/zlib1g_1.2.13%2bdfsg-1_amd64.deb'"
        f" zlib1g_1%3a1.2.13+dfsg-1_amd64.deb 86700 SHA256:{digest}\n"
        f"'{mirror}/debian-security/pool/updates/main/c/ca_2025%7edeb12u2_all.deb'"
        f" ca_2025~deb12u2_all.deb 100 SHA256:{digest}\n"
    )
    zlib, certificates = read_packages(text, mirror)
    assert (zlib.name, zlib.version, zlib.architecture) == ("zlib1g", "1:1.2.13+dfsg-1", "amd64")
    assert (zlib.archive, zlib.sha256) == ("debian", digest)
    assert zlib.filename == "pool/main/z/zlib/zlib1g_1.2.13+dfsg-1_amd64.deb"
    assert certificates.archive == "debian-security"
    assert certificates.filename == "pool/updates/main/c/ca_2025~deb12u2_all.deb"


def test_the_lock_file_is_unchanged_after_read_and_write() -> None:
    lock = Lock.read()
    file = files("capelin_release") / "debian.lock"
    assert lock_text(lock.snapshot, lock.packages) == file.read_text()
    assert {package.archive for package in lock.packages["amd64"]} <= {"debian", "debian-security"}
    assert timestamp(lock.time) == "2026-11-22T10:11:17Z"


def test_our_lock_file_has_the_same_packages_for_every_architecture() -> None:
    lock = Lock.read()
    named = {
        architecture: {package.name for package in packages}
        for architecture, packages in lock.packages.items()
    }
    assert named["amd64"] == named["arm64"]
    assert not named["amd64"] & {"bash", "coreutils", "dash", "dpkg", "perl-base"}
    assert lock.python.startswith("3.11")
