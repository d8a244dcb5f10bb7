"""Removes the secrets of bootstrap data from the output of commands."""

import re
from typing import Final

from capelin.controller import redact

from capelin_machine_pool.bootstrap.cloud_config import CloudConfig

_HIDDEN: Final = "(hidden)"
_KNOWN: Final = re.compile(
    r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b"  # a bootstrap token
    r"|(?<!sha256:)\b[0-9a-f]{64}\b"  # kubeadm's certificate key
    r"|\$[0-9a-z]{1,8}\$\S{8,}"  # the hash of a password
    r"|-----BEGIN [A-Z ]+-----.*?(-----END [A-Z ]+-----|\Z)",
    re.DOTALL,
)
# Names have bounds, and begin at the begin of a word: tenants write these texts.
_NAMED: Final = re.compile(
    r"""(?<![\w.-])([\w.-]{1,128})["']?\s{0,16}[:=]\s{0,16}["']?([^\s"',]+)"""
)
_FLAG: Final = re.compile(r"(?<![\w-])--?([\w-]{1,128})[= ]{1,16}(\S+)")
_SECRET_NAME: Final = re.compile(r"(?i)token|secret|pass|pwd|key|credential|auth|^u(ser)?$")
_LOGIN: Final = re.compile(r"//[^\s/@:]{0,128}:([^\s/@]{1,128})@")
_SHORTEST = 6
_LONG = 24
_WORD: Final = re.compile(r"[^\s\"',;]+")


def secrets_of(config: CloudConfig) -> frozenset[str]:
    """The values in bootstrap data that must not appear anywhere else."""
    found: set[str] = set()
    texts = [file.content.decode(errors="replace") for file in config.files]
    for text in (*texts, *config.boot_commands, *config.commands):
        named: list[tuple[str, str]] = [*_NAMED.findall(text), *_FLAG.findall(text)]
        values = [value for name, value in named if _SECRET_NAME.search(name)]
        # Also the password of a login.
        found.update(values, (value.rpartition(":")[2] for value in values), _LOGIN.findall(text))
    for file, text in zip(config.files, texts, strict=True):
        # A file that other users may not read: a password may have any name, or none.
        if not file.mode & 0o004:
            words: list[str] = _WORD.findall(text)
            found.update(word for word in words if len(words) == 1 or _may_be_secret(word))
    found.update(user.password_hash for user in config.users)
    values = (value.strip("'\"") for value in found)
    return frozenset(
        value for value in values if len(value) >= _SHORTEST and not value.startswith("/")
    )


def _may_be_secret(word: str) -> bool:
    has_digits_and_letters = any(map(str.isdigit, word)) and any(map(str.isalpha, word))
    return has_digits_and_letters or len(word) >= _LONG


def mask(text: str, secrets: frozenset[str]) -> str:
    """The text without these values, and without others that look like secrets."""
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, _HIDDEN)
    return redact(_KNOWN.sub(_HIDDEN, text))
