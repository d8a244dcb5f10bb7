"""Cloud-config as the kubeadm bootstrap provider writes it.

It supports the directives of that provider, with the order and the meaning that cloud-init gives
them. It rejects everything else by name: a directive that is silently left out would be a machine
that differs from its specification.
"""

import base64
import binascii
import re
import shlex
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import yaml
from capelin.yaml import read_all_untrusted_yaml, read_untrusted_yaml

MAX_BYTES: Final = 1 << 20
"""Size of bootstrap data. A Secret has at most this."""
MAX_CONTENT_BYTES: Final = 16 << 20
"""Size of all files together, after decompression."""
MAX_ITEMS: Final = 1_000

_TEMPLATE_HEADER: Final = "## template: jinja"
_HEADER: Final = "#cloud-config"
_SUBSCRIPT: Final = re.compile(r"""\[\s*(['"])(\w+)\1\s*\]""")
_FORMATTING: Final = frozenset({"disk_setup", "fs_setup", "mounts", "growpart", "resize_rootfs"})
_FILE_KEYS: Final = frozenset({"path", "owner", "permissions", "encoding", "append", "content"})
_USER_KEYS: Final = frozenset(
    {
        *("name", "gecos", "groups", "homedir", "inactive", "shell", "passwd", "primary_group"),
        *("lock_passwd", "sudo", "ssh_authorized_keys"),
    }
)
_NTP_KEYS: Final = frozenset({"enabled", "servers"})
_USER_NAME: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_OWNER: Final = re.compile(r"[A-Za-z0-9_][\w.-]{0,63}(:[A-Za-z0-9_][\w.-]{0,63})?")
_JOIN_CONFIGURATION: Final = "/run/kubeadm/kubeadm-join-config.yaml"
_PREFLIGHT_CHECK: Final = re.compile(r"[A-Za-z0-9-]{1,253}")
_SERVER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:-]{0,252}")
_BASE64: Final = frozenset({"b64", "base64"})
_GZIP: Final = frozenset({"gz", "gzip"})
_GZIP_BASE64: Final = frozenset({"gz+b64", "gzip+b64", "gz+base64", "gzip+base64"})

ValueT = TypeVar("ValueT")


class CloudConfigError(ValueError):
    """Bootstrap data that cannot be executed as its author expects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file to write before the commands run."""

    path: str
    content: bytes
    owner: str = "root:root"
    mode: int = 0o644
    append: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user to create."""

    name: str
    gecos: str = ""
    groups: tuple[str, ...] = ()
    home: str = ""
    shell: str = ""
    password_hash: str = ""
    primary_group: str = ""
    lock_password: bool = True
    inactive: bool = False
    sudo: str = ""
    ssh_authorized_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudConfig:
    """The steps of a bootstrap, in the order of their execution."""

    boot_commands: tuple[str, ...] = ()
    """Lines of one shell script."""
    files: tuple[File, ...] = ()
    users: tuple[User, ...] = ()
    ntp_servers: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    """Lines of one shell script, as in cloud-init: a failed command does not stop the others."""

    @property
    def ignored_preflight_errors(self) -> tuple[str, ...]:
        """The checks of kubeadm that do not stop the machine from joining."""
        content = next((it.content for it in self.files if it.path == _JOIN_CONFIGURATION), b"")
        try:
            documents: list[Any] = [*read_all_untrusted_yaml(content)]
        except (yaml.YAMLError, RecursionError, ValueError):
            return ()
        for document in documents:
            match document:
                case {"nodeRegistration": {"ignorePreflightErrors": [*checks]}}:
                    texts = map(str, cast("list[object]", checks))
                    return tuple(filter(_PREFLIGHT_CHECK.fullmatch, texts))
                case _:
                    continue
        return ()


def read_cloud_config(data: bytes, metadata: Mapping[str, str]) -> CloudConfig:
    """Read the bootstrap data of a machine.

    Args:
        data: The value of the bootstrap Secret.
        metadata: Values of template expressions such as `ds.meta_data.local_hostname`.

    Raises:
        CloudConfigError: The data are invalid, too large, or contain an unsupported directive.
    """
    if len(data) > MAX_BYTES:
        raise CloudConfigError(f"the bootstrap data are larger than {MAX_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise CloudConfigError("the bootstrap data are not UTF-8 text") from None
    document = _document(_render(text, metadata))
    for key in document:
        if key in _FORMATTING:
            message = f"{key} is not supported: Capelin formats and mounts no disk of a host"
            raise CloudConfigError(message)
    _check_keys("cloud-config", document, {"bootcmd", "write_files", "users", "ntp", "runcmd"})
    files = tuple(_each(document, "write_files", _file))
    if sum(len(file.content) for file in files) > MAX_CONTENT_BYTES:
        raise CloudConfigError(f"the files are larger than {MAX_CONTENT_BYTES} bytes together")
    return CloudConfig(
        boot_commands=tuple(_each(document, "bootcmd", _command)),
        files=files,
        users=tuple(user for user in _each(document, "users", _user) if user is not None),
        ntp_servers=_ntp(document.get("ntp")),
        commands=tuple(_each(document, "runcmd", _command)),
    )


def instance_metadata(*, hostname: str, instance_id: str, provider_id: str) -> dict[str, str]:
    """The template values of a machine, by the names that cloud-init uses."""
    return {
        "ds.meta_data.local_hostname": hostname,
        "ds.meta_data.hostname": hostname,
        "ds.meta_data.instance_id": instance_id,
        "ds.meta_data.provider_id": provider_id,
        "v1.local_hostname": hostname,
        "v1.instance_id": instance_id,
    }


def _render(text: str, metadata: Mapping[str, str]) -> str:
    """Replace template expressions, before the text is parsed, as cloud-init does."""
    first, _, rest = text.partition("\n")
    if first.strip() != _TEMPLATE_HEADER:
        return text
    for mark in ("{%", "{#"):
        if mark in rest:
            raise CloudConfigError(f"template statements and comments ({mark}) are not supported")
    rendered, *pieces = rest.split("{{")
    for piece in pieces:
        expression, end, text = piece.partition("}}")
        name = _SUBSCRIPT.sub(r".\2", expression.strip("-").strip())
        if not end or name not in metadata:
            known = ", ".join(sorted(metadata))
            shown = _short("{{" + expression + end)
            raise CloudConfigError(f"unknown template expression {shown}; known: {known}")
        rendered += metadata[name] + text
    return rendered


def _document(text: str) -> Mapping[str, Any]:
    start = text.lstrip()
    if start.startswith("{"):
        raise CloudConfigError("Ignition is not supported; set spec.format to cloud-config")
    header = start.partition("\n")[0].strip()
    if header != _HEADER:
        raise CloudConfigError(f"the bootstrap data do not begin with {_HEADER}")
    try:
        document = read_untrusted_yaml(text)
    except (yaml.YAMLError, RecursionError, ValueError):
        # The parser's message quotes the text, which contains secrets.
        raise CloudConfigError("the bootstrap data are not YAML that every parser reads") from None
    return {} if document is None else _mapping("cloud-config", document)


def _mapping(what: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CloudConfigError(f"{what} is not a mapping")
    mapping = cast("dict[object, Any]", value)
    if not all(isinstance(key, str) for key in mapping):
        raise CloudConfigError(f"{what} has keys that are not strings")
    return cast("dict[str, Any]", value)


def _each(
    document: Mapping[str, Any], key: str, read: Callable[[str, Any], ValueT]
) -> list[ValueT]:
    value = document.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise CloudConfigError(f"{key} is not a list")
    items = cast("list[Any]", value)
    if len(items) > MAX_ITEMS:
        raise CloudConfigError(f"{key} has more than {MAX_ITEMS} items")
    return [read(f"{key}[{index}]", item) for index, item in enumerate(items)]


def _check_keys(what: str, value: Mapping[str, Any], known: set[str] | frozenset[str]) -> None:
    if unknown := sorted(value.keys() - known):
        names = ", ".join(map(_short, unknown))
        raise CloudConfigError(f"{what} has the unsupported {names}")


def _command(what: str, value: object) -> str:
    """A line of a shell script. The words of a list are quoted."""
    if isinstance(value, str):
        line = value
    elif isinstance(value, list):
        words = cast("list[object]", value)
        if not words or not all(isinstance(word, str | int | float) for word in words):
            raise CloudConfigError(f"{what} is not a list of words")
        line = shlex.join(map(str, words))
    else:
        raise CloudConfigError(f"{what} is neither a string nor a list of words")
    if "\0" in line:
        raise CloudConfigError(f"{what} contains a NUL character")
    return line


def _file(what: str, value: object) -> File:
    fields = _mapping(what, value)
    _check_keys(what, fields, _FILE_KEYS)
    path = _string(what, fields, "path")
    if not path.startswith("/") or ".." in path.split("/") or not path.isprintable():
        raise CloudConfigError(f"{what}.path is not an absolute path")
    if path.endswith("/") or len(path) > 4096:
        raise CloudConfigError(f"{what}.path does not name a file")
    owner = _string(what, fields, "owner") or "root:root"
    if not _OWNER.fullmatch(owner):
        raise CloudConfigError(f"{what}.owner is not user:group")
    return File(
        path=path,
        content=_content(what, fields),
        owner=owner,
        mode=_mode(what, fields.get("permissions")),
        append=_boolean(what, fields, "append", default=False),
    )


def _content(what: str, fields: Mapping[str, Any]) -> bytes:
    content = _string(what, fields, "content").encode()
    encoding = _string(what, fields, "encoding").lower()
    if encoding in {"", "text/plain"}:
        return content
    if encoding in _GZIP:
        raise CloudConfigError(f"{what}.encoding is gzip in text; use gzip+base64")
    if encoding not in _BASE64 | _GZIP_BASE64:
        raise CloudConfigError(f"{what}.encoding {_short(encoding)} is not supported")
    try:
        decoded = base64.b64decode(b"".join(content.split()), validate=True)
        return _decompress(what, decoded) if encoding in _GZIP_BASE64 else decoded
    except (binascii.Error, zlib.error):
        raise CloudConfigError(f"{what}.content is not {encoding}") from None


def _decompress(what: str, content: bytes) -> bytes:
    decompressor = zlib.decompressobj(wbits=31)
    decompressed = decompressor.decompress(content, MAX_CONTENT_BYTES + 1)
    if len(decompressed) > MAX_CONTENT_BYTES:
        raise CloudConfigError(f"{what} is larger than {MAX_CONTENT_BYTES} bytes")
    if not decompressor.eof:
        raise CloudConfigError(f"{what}.content ends early")
    return decompressed


def _mode(what: str, value: object) -> int:
    if value is None or value == "":
        return 0o644
    # YAML reads an unquoted 0640 as an octal number.
    if isinstance(value, int) and not isinstance(value, bool):
        mode = value
    elif isinstance(value, str) and re.fullmatch(r"(0o?)?[0-7]{3,4}", value):
        mode = int(value.removeprefix("0o"), 8)
    else:
        raise CloudConfigError(f"{what}.permissions are not octal digits")
    if not 0 <= mode <= 0o7777:
        raise CloudConfigError(f"{what}.permissions are out of range")
    return mode


def _user(what: str, value: object) -> User | None:
    if value == "default":
        return None  # the image's own user: the host has it, or does not
    fields = _mapping(what, value)
    _check_keys(what, fields, _USER_KEYS)
    name = _string(what, fields, "name")
    if not _USER_NAME.fullmatch(name) or name == "root":
        raise CloudConfigError(f"{what}.name is not the name of a user that can be created")
    groups = _strings(what, fields, "groups", separator=",")
    primary_group = _string(what, fields, "primary_group")
    for group in (*groups, primary_group):
        if group and not _USER_NAME.fullmatch(group):
            raise CloudConfigError(f"{what} has a group with an invalid name")
    texts = {key: _string(what, fields, key) for key in ("gecos", "homedir", "shell", "passwd")}
    for key, text in texts.items():
        if ":" in text or not text.isprintable():
            raise CloudConfigError(f"{what}.{key} contains a colon or a control character")
    return User(
        name=name,
        gecos=texts["gecos"],
        groups=groups,
        home=texts["homedir"],
        shell=texts["shell"],
        password_hash=texts["passwd"],
        primary_group=primary_group,
        lock_password=_boolean(what, fields, "lock_passwd", default=True),
        inactive=_boolean(what, fields, "inactive", default=False),
        sudo="\n".join(_strings(what, fields, "sudo")),
        ssh_authorized_keys=_strings(what, fields, "ssh_authorized_keys"),
    )


def _ntp(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    fields = _mapping("ntp", value)
    _check_keys("ntp", fields, _NTP_KEYS)
    servers = _strings("ntp", fields, "servers")
    for server in servers:
        if not _SERVER.fullmatch(server):
            raise CloudConfigError("ntp.servers has an entry that is neither a name nor an address")
    return servers if _boolean("ntp", fields, "enabled", default=True) else ()


def _string(what: str, fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CloudConfigError(f"{what}.{key} is not a string")
    return value


def _strings(
    what: str, fields: Mapping[str, Any], key: str, separator: str | None = None
) -> tuple[str, ...]:
    """A list of strings, or one string."""
    value = fields.get(key)
    if value is None or value == "" or value is False:
        return ()
    if isinstance(value, str):
        parts: Sequence[object] = value.split(separator) if separator else [value]
    elif isinstance(value, list):
        parts = cast("list[object]", value)
    else:
        raise CloudConfigError(f"{what}.{key} is not a list of strings")
    if len(parts) > MAX_ITEMS:
        raise CloudConfigError(f"{what}.{key} has more than {MAX_ITEMS} items")
    strings = [part.strip() for part in parts if isinstance(part, str)]
    if len(strings) != len(parts) or not all(map(str.isprintable, strings)):
        raise CloudConfigError(f"{what}.{key} is not a list of printable strings")
    return tuple(strings)


def _boolean(what: str, fields: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = fields.get(key, default)
    if not isinstance(value, bool):
        raise CloudConfigError(f"{what}.{key} is neither true nor false")
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
