"""The subset of cloud-config that the kubeadm bootstrap provider writes for joining machines."""

from dataclasses import dataclass
from typing import Any, Final

from capelin.yaml import read_yaml

_HEADER: Final = "## template: jinja\n#cloud-config\n"
_HOSTNAME: Final = "{{ ds.meta_data.local_hostname }}"
_FILE_KEYS: Final = {"path", "owner", "permissions", "content"}


class CloudConfigError(ValueError):
    """Something that is not understood here."""


@dataclass(frozen=True, slots=True)
class File:
    """A file to write before any command runs."""

    path: str
    owner: str
    permissions: str
    content: str


@dataclass(frozen=True, slots=True)
class CloudConfig:
    """Files to write, and shell commands to run afterwards."""

    files: tuple[File, ...]
    commands: tuple[str, ...]


def read_cloud_config(data: bytes, hostname: str) -> CloudConfig:
    """Read the bootstrap data of a machine.

    Raises:
        CloudConfigError: it contains unsupported fields.
    """
    text = data.decode()
    if not text.startswith(_HEADER):
        raise CloudConfigError(f"it does not begin with {_HEADER!r}")
    text = text.replace(_HOSTNAME, hostname)
    if "{{" in text or "{%" in text:
        raise CloudConfigError(f"it has templates other than {_HOSTNAME}")
    document = read_yaml(text)
    _check_keys("cloud-config", document, {"write_files", "runcmd"})
    files = [_file(value) for value in document["write_files"]]
    commands = document["runcmd"]
    if not all(isinstance(command, str) for command in commands):
        raise CloudConfigError("a command is a list")
    return CloudConfig(tuple(files), tuple(commands))


def _file(value: Any) -> File:
    _check_keys("a file", value, _FILE_KEYS)
    return File(**value)


def _check_keys(what: str, value: Any, keys: set[str]) -> None:
    if value.keys() != keys:
        raise CloudConfigError(f"{what} has {sorted(value)}, and not {sorted(keys)}")
