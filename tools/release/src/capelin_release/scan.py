"""Finds forbidden files: secrets, shells, setuid and world-writable files, wrong programs."""

import re
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from capelin_release.files import File

_SHELLS = frozenset(
    (
        *("ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "lksh", "mksh", "rbash", "sh"),
        *("static-sh", "tcsh", "toybox", "zsh"),
    )
)
_SHELL_SCRIPT = re.compile(rb"#! *(/usr)?/bin/(env +)?(ba|da|k|z|c|tc)?sh\b")
# Searched by their beginnings, since a search for the expressions would take minutes.
_SECRETS = (
    (
        "a private key",
        # Every library that reads keys contains the header.
        (b"-----BEGIN ",),
        re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\r?\n[A-Za-z0-9+/=\r\n]{64}"),
    ),
    ("an access key", (b"AKIA", b"ASIA"), re.compile(rb"A[KS]IA[A-Z2-7]{16}\b")),
    (
        "a token",
        (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"npm_"),
        re.compile(rb"\w{3}_[A-Za-z0-9]{36}"),
    ),
    ("a token", (b"github_pat_",), re.compile(rb"github_pat_\w{60}")),
    ("a token", (b"glpat-", b"pypi-AgE", b"xoxb-", b"xoxp-"), re.compile(rb"[a-z]+-[\w-]{20}")),
    ("a signed token", (b"eyJ",), re.compile(rb"eyJ[\w-]{16,}\.eyJ[\w-]{16,}\.[\w-]{16,}")),
    (
        "a password in a URL",
        (b"://",),
        re.compile(rb"://[\w.-]{1,40}:[^\s/@:'\"<>{}$%()\\\x00-\x1f]{6,60}@[a-z]"),
    ),
)
_SECRET_NAMES = re.compile(
    r"(^|/)(\.netrc|\.pypirc|\.npmrc|\.git-credentials|\.dockerconfigjson|id_(rsa|ed25519|ecdsa)"
    r"|kubeconfig|\.kube/config|[^/]+\.key)$"
)
_MACHINES = {"amd64": 62, "arm64": 183}


@dataclass(frozen=True, slots=True)
class Finding:
    """A forbidden file, and why."""

    path: str
    package: str
    problem: str

    def __str__(self) -> str:
        """Such as `/bin/su (login): setuid`."""
        return f"/{self.path} ({self.package}): {self.problem}"


def scan(files: Mapping[str, File], architecture: str) -> list[Finding]:
    """All problems of the files of an image."""
    return [
        Finding(path, file.package.name, problem)
        for path, file in sorted(files.items())
        for problem in _problems(path, file, architecture)
    ]


def _problems(path: str, file: File, architecture: str) -> Iterator[str]:
    yield from _mode_problems(file)
    name = path.rpartition("/")[2]
    if name in _SHELLS and "/bin/" in f"/{path}".replace("sbin/", "bin/"):
        yield "a shell"
    if file.kind != "file":
        return
    if _SECRET_NAMES.search(path):
        yield "named as a secret"
    content = file.read()
    if file.mode & 0o111 and _SHELL_SCRIPT.match(content):
        yield "a shell script"
    yield from _secrets(content)
    machine = elf_machine(content)
    if machine is not None and machine != _MACHINES[architecture]:
        yield f"a program for another processor (ELF machine {machine})"


def _secrets(content: bytes) -> Iterator[str]:
    for problem, beginnings, pattern in _SECRETS:
        for beginning in beginnings:
            position = content.find(beginning)
            while position >= 0:
                if pattern.match(content, position):
                    yield problem
                    break
                position = content.find(beginning, position + 1)


def _mode_problems(file: File) -> Iterator[str]:
    if file.kind == "link":
        return
    if file.mode & stat.S_ISUID:
        yield "setuid"
    if file.mode & stat.S_ISGID:
        yield "setgid"
    # A folder where all may write and none may remove what others wrote is what /tmp is.
    sticky = file.kind == "folder" and file.mode & stat.S_ISVTX
    if file.mode & stat.S_IWOTH and not sticky:
        yield "world-writable"


def elf_machine(content: bytes) -> int | None:
    """The processor of a program or library. None if it is neither."""
    if content[:4] != b"\x7fELF" or len(content) < 20:
        return None
    order = "<" if content[5] == 1 else ">"
    return int(struct.unpack_from(f"{order}H", content, 18)[0])
