"""Writes the lock file of Debian packages: `python -m capelin_release.debian_lock`."""

import asyncio
import hashlib
import json
import lzma
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from capelin_release.debian import (
    MIRROR,
    MIRROR_VARIABLE,
    LockedPackage,
    PackageError,
)
from capelin_release.downloads import read_url

ROOTS = ("base-files", "ca-certificates", "libstdc++6", "netbase", "python3.11", "tzdata")
"""What an image needs by itself; packages that they depend on follow.

Wheels that are written in C++ bring everything but its library."""
EXCLUDED = frozenset({"awk", "debconf", "dpkg", "install-info", "mawk", "openssl"})
"""Dependencies of installation scripts only. All of them bring a shell or need one."""
ARCHITECTURES = ("amd64", "arm64")
SUITES = (
    ("debian", "bookworm"),
    ("debian", "bookworm-updates"),
    ("debian-security", "bookworm-security"),
)
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

Stanza = Mapping[str, str]


def closure(
    roots: Iterable[str], index: Mapping[str, Stanza], excluded: frozenset[str]
) -> list[str]:
    """The names of packages and of all that they depend on, sorted.

    Of alternatives, the first that exists is taken.
    """
    names: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in names or name in excluded:
            continue
        if name not in index:
            raise PackageError(f"Debian has no package {name}.")
        names.add(name)
        for choices in _dependencies(index[name]):
            if not excluded.intersection(choices):
                known = (choice for choice in choices if choice in index)
                waiting.append(next(known, choices[0]))
    return sorted(names)


def _dependencies(stanza: Stanza) -> Iterator[list[str]]:
    for field in ("Pre-Depends", "Depends"):
        for group in filter(None, stanza.get(field, "").split(",")):
            yield [re.split(r"[\s(:]", choice.strip())[0] for choice in group.split("|")]


def read_stanzas(text: str) -> Iterator[dict[str, str]]:
    """The entries of a Packages file."""
    for paragraph in text.split("\n\n"):
        lines = paragraph.replace("\n ", " ").splitlines()
        fields = (line.partition(":") for line in lines)
        if entry := {key: value.strip() for key, _, value in fields}:
            yield entry


def newest(entries: Iterable[Stanza]) -> dict[str, Stanza]:
    """By name, the entry with the newest version; dpkg knows the order."""
    by_name: dict[str, Stanza] = {}
    for entry in entries:
        present = by_name.get(entry["Package"])
        if present is None or is_newer(entry["Version"], than=present["Version"]):
            by_name[entry["Package"]] = entry
    return by_name


def is_newer(version: str, than: str) -> bool:
    """Whether a version is newer, in the order of dpkg."""
    command = ("dpkg", "--compare-versions", version, "gt", than)
    return subprocess.run(command, check=False).returncode == 0


def resolve(indexes: Mapping[str, Sequence[tuple[str, Stanza]]]) -> dict[str, list[LockedPackage]]:
    """The packages of each architecture, from its entries with the archives that they are in."""
    resolved: dict[str, list[LockedPackage]] = {}
    for architecture, entries in indexes.items():
        # The main archive, which keeps a package longest, comes first and is preferred.
        archives = {entry["SHA256"]: archive for archive, entry in reversed(entries)}
        index = newest(entry for _, entry in entries)
        resolved[architecture] = [
            LockedPackage(
                name,
                index[name]["Version"],
                index[name]["Architecture"],
                archives[index[name]["SHA256"]],
                index[name]["Filename"],
                index[name]["SHA256"],
            )
            for name in closure(ROOTS, index, EXCLUDED)
        ]
    return resolved


def lock_text(snapshot: str, resolved: Mapping[str, Sequence[LockedPackage]]) -> str:
    """The lock file."""
    lines = [
        "# The Debian packages of the images. Written by",
        "# `python -m capelin_release.debian_lock`; not to be edited.",
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


async def fetch_indexes(mirror: str, keyring: Path) -> dict[str, list[tuple[str, Stanza]]]:
    """The entries of all suites for each architecture, checked against Debian's signatures."""
    indexes: dict[str, list[tuple[str, Stanza]]] = {name: [] for name in ARCHITECTURES}
    for archive, suite in SUITES:
        base = f"{mirror}/{archive}/dists/{suite}"
        release = _verified(await read_url(f"{base}/InRelease"), keyring)
        for architecture, entries in indexes.items():
            path = f"main/binary-{architecture}/Packages.xz"
            match = re.search(rf"^ ([0-9a-f]{{64}}) +\d+ {re.escape(path)}$", release, re.MULTILINE)
            data = await read_url(f"{base}/{path}")
            if match is None or hashlib.sha256(data).hexdigest() != match[1]:
                raise PackageError(f"{base}/{path} is not what the suite's signed list names.")
            text = lzma.decompress(data).decode()
            entries += [(archive, entry) for entry in read_stanzas(text)]
    return indexes


def _verified(signed: bytes, keyring: Path) -> str:
    with tempfile.NamedTemporaryFile() as file:
        file.write(signed)
        file.flush()
        command = ("gpgv", "--quiet", "--keyring", keyring, "--output", "-", file.name)
        done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise PackageError(
            "Debian's signature is not valid.", reason=done.stderr.decode(errors="replace").strip()
        )
    return done.stdout.decode()


def main() -> None:
    """Resolve anew and write the lock file beside this module."""
    mirror = os.environ.get(MIRROR_VARIABLE, MIRROR).rstrip("/")
    resolved = resolve(asyncio.run(fetch_indexes(mirror, KEYRING)))
    snapshot = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    Path(__file__).with_name("debian.lock").write_text(lock_text(snapshot, resolved))


if __name__ == "__main__":
    main()
