"""Writes the lock file of the images' Debian packages: `uv run python -m tools.lock_debian`.

apt does the work, on a machine that has it and Debian's keyring: it checks the signatures of the
lists, and chooses the packages and versions.
"""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from urllib.parse import unquote

from capelin_release.debian import MIRROR, MIRROR_VARIABLE, LockedPackage

ROOTS = ("base-files", "ca-certificates", "libstdc++6", "netbase", "python3.11", "tzdata")
"""The direct needs of an image. The packages that they depend on follow.

Wheels that are written in C++ bring everything but its library."""
EXCLUDED = ("awk", "debconf", "dpkg", "install-info", "mawk", "openssl")
"""Dependencies of installation scripts only. All of them bring a shell or need one."""
ARCHITECTURES = ("amd64", "arm64")
# The main archive keeps a package longest: apt prefers the first one that has a version.
SUITES = (
    ("debian", "bookworm"),
    ("debian", "bookworm-updates"),
    ("debian-security", "bookworm-security"),
)
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PACKAGE = re.compile(
    r"^'(?P<url>\S+)' (?P<name>[^_]+)_(?P<version>[^_]+)_(?P<architecture>\w+)\.deb \d+"
    r" SHA256:(?P<sha256>[0-9a-f]{64})$",
    re.MULTILINE,
)


def resolve(mirror: str, architecture: str) -> list[LockedPackage]:
    """The packages of an architecture, as apt chooses them for a machine without any."""
    with tempfile.TemporaryDirectory() as folder:
        # apt takes the excluded packages for installed, and so needs none of their dependencies.
        status = "".join(
            f"Package: {name}\nStatus: install ok installed\nVersion: 1:99\nArchitecture: all\n"
            "Multi-Arch: foreign\nMaintainer: none\nDescription: excluded\n\n"
            for name in EXCLUDED
        )
        sources = "".join(
            f"deb [signed-by={KEYRING}] {mirror}/{archive} {suite} main\n"
            for archive, suite in SUITES
        )
        texts = {"status": status, "sources.list": sources}
        for name, text in texts.items():
            Path(folder, name).write_text(text)
        for name in ("lists/partial", "cache/archives/partial"):
            Path(folder, name).mkdir(parents=True)
        settings = {
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Sandbox::User": "",
            "APT::Update::Error-Mode": "any",
            "Acquire::ForceHash": "SHA256",
            "Acquire::Languages": "none",
            "Dir::Cache": f"{folder}/cache",
            "Dir::Etc::SourceList": f"{folder}/sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State::Lists": f"{folder}/lists",
            "Dir::State::Status": f"{folder}/status",
        }
        options = [f"--option={name}={value}" for name, value in settings.items()]
        subprocess.run(["apt-get", *options, "--quiet=2", "update"], check=True)
        install = ["--print-uris", "--quiet=2", "--no-install-recommends", "install", *ROOTS]
        done = subprocess.run(["apt-get", *options, *install], capture_output=True, check=True)
    return sorted(read_packages(done.stdout.decode(), mirror), key=lambda package: package.name)


def read_packages(text: str, mirror: str) -> Iterator[LockedPackage]:
    """The packages that `apt-get --print-uris` lists."""
    for match in _PACKAGE.finditer(text):
        archive, _, path = unquote(match["url"]).removeprefix(f"{mirror}/").partition("/")
        version = unquote(match["version"])
        yield LockedPackage(
            match["name"], version, match["architecture"], archive, path, match["sha256"]
        )


def lock_text(snapshot: str, resolved: Mapping[str, Sequence[LockedPackage]]) -> str:
    """The lock file."""
    lines = [
        "# The Debian packages of the images. Written by",
        "# `python -m tools.lock_debian`. Do not edit it.",
        f'snapshot = "{snapshot}"',
    ]
    for architecture, packages in resolved.items():
        for package in packages:
            lines += ["", f"[[packages.{architecture}]]"]
            lines += [
                f"{field} = {json.dumps(getattr(package, field))}"
                for field in LockedPackage.__slots__
            ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Resolve again and write the lock file of `capelin_release`."""
    mirror = os.environ.get(MIRROR_VARIABLE, MIRROR).rstrip("/")
    resolved = {name: resolve(mirror, name) for name in ARCHITECTURES}
    snapshot = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    file = Path(str(files("capelin_release") / "debian.lock"))
    file.write_text(lock_text(snapshot, resolved))


if __name__ == "__main__":
    main()
