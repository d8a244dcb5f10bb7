"""Hosts in a file: YAML or CSV, with a problem for each wrong row."""

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import yaml
from capelin.api import ObjectMeta, wire_name
from capelin.errors import InvalidInputError
from capelin.yaml import read_untrusted_yaml
from capelin_machine_pool.api import Taint
from capelin_machine_pool.hosts.api import CapelinHost, HostSpec
from pydantic import ValidationError

_FIELDS: Final = frozenset(
    {
        *("name", "address", "port", "user", "credentials", "hostKey", "hostAuthority"),
        *("failureDomain", "labels", "taints", "maintenance"),
    }
)
_TEXTS: Final = ("address", "port", "user", "failureDomain", "maintenance")
_MOST: Final = 10_000
_LONGEST: Final = 4 * 2**20
_FORMAT: Final = (
    "Each row has a name and an address, and may have port, user, credentials, hostKey,"
    " hostAuthority, failureDomain, labels (role=worker;rack=1), taints (gpu=yes:NoSchedule) and"
    " maintenance."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDefaults:
    """Values for rows that do not have their own."""

    namespace: str
    credentials: str = ""
    user: str | None = None
    trust_on_first_use: bool = False
    labels: Mapping[str, str] | None = None


def read_host_file(path: Path, defaults: HostDefaults) -> list[CapelinHost]:
    """The hosts in a file.

    Raises:
        InvalidInputError: It is unreadable, or some rows are invalid.
    """
    try:
        content = path.read_bytes()
        text = content.decode()
    except UnicodeDecodeError:
        raise InvalidInputError(f"{path} is not UTF-8 text.") from None
    if len(content) > _LONGEST:
        raise InvalidInputError(f"{path} is larger than 4 MiB.", hint="Split it.")
    rows = _csv_rows(text) if path.suffix.lower() == ".csv" else _yaml_rows(text, path)
    if not rows or len(rows) > _MOST:
        raise InvalidInputError(f"{path} has {len(rows)} hosts.", hint=_FORMAT)
    return hosts_of(rows, defaults)


def hosts_of(rows: Sequence[Mapping[str, Any]], defaults: HostDefaults) -> list[CapelinHost]:
    """The hosts of rows.

    Raises:
        InvalidInputError: Some rows are invalid. The error names all of them.
    """
    hosts: list[CapelinHost] = []
    problems: list[str] = []
    for number, row in enumerate(rows, 1):
        try:
            hosts.append(_host(row, defaults))
        except ValueError as error:
            what = f" ({row['name']})" if row.get("name") else ""
            problems.append(f"row {number}{what}: {_explained(error)}")
    problems += _duplicates("name", Counter(host.name for host in hosts))
    problems += _duplicates(
        "address", Counter(f"{host.spec.address}:{host.spec.port}" for host in hosts)
    )
    if problems:
        shown = "; ".join(problems[:10]) + ("; ..." if len(problems) > 10 else "")
        raise InvalidInputError("The file has invalid hosts.", reason=f"{shown}.", hint=_FORMAT)
    return hosts


def _host(row: Mapping[str, Any], defaults: HostDefaults) -> CapelinHost:
    if unknown := sorted(set(row) - _FIELDS):
        raise ValueError(f"unknown {', '.join(unknown)}")
    for required in ("name", "address"):
        if not row.get(required):
            raise ValueError(f"it has no {required}")
    credentials = str(row.get("credentials") or defaults.credentials)
    if not credentials:
        raise ValueError("it names no Secret in credentials, and no --credentials exist")
    keys, authorities = _list(row.get("hostKey")), _list(row.get("hostAuthority"))
    if not keys and not authorities and not defaults.trust_on_first_use:
        raise ValueError("it has no hostKey: run ssh-keyscan, or pass --trust-on-first-use")
    fields: dict[str, Any] = {
        name: str(row[name]) if row.get(name) not in (None, "") else None for name in _TEXTS
    }
    fields |= {
        "user": fields["user"] or defaults.user,
        "credentials": {"secretName": credentials},
        "hostKeys": keys or None,
        "hostAuthorities": authorities or None,
        "trustOnFirstUse": True if not keys and not authorities else None,
        "taints": _taints(row.get("taints")) or None,
    }
    # Only fields with a value: the import leaves all others to their owners.
    given = {name: value for name, value in fields.items() if value is not None}
    # Cells are texts, also those of numbers and flags.
    spec = HostSpec.model_validate(given, strict=False)
    labels = {**(defaults.labels or {}), **_labels(row.get("labels"))}
    metadata = ObjectMeta(name=str(row["name"]), namespace=defaults.namespace, labels=labels)
    return CapelinHost(metadata=metadata, spec=spec)


def read_labels(text: str) -> dict[str, str]:
    """Labels such as `role=worker;rack=1`.

    Raises:
        ValueError: A part is not a label.
    """
    labels: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.replace(",", ";").split(";"))):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise ValueError(f"{part!r} is not a label: write key=value")
        labels[key] = value
    return labels


def _csv_rows(text: str) -> list[dict[str, Any]]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    rows: list[dict[str, Any]] = []
    for row in reader:
        if None in row:
            raise InvalidInputError(
                f"Row {len(rows) + 1} has more cells than the header.", hint=_FORMAT
            )
        rows.append({key.strip(): (value or "").strip() for key, value in row.items()})
    return rows


def _yaml_rows(text: str, path: Path) -> list[dict[str, Any]]:
    try:
        document = read_untrusted_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = f"{str(error).splitlines()[0]}."
        raise InvalidInputError(f"{path} is not YAML.", reason=reason) from None
    if not isinstance(document, list) or not all(
        isinstance(row, dict) for row in cast("list[object]", document)
    ):
        raise InvalidInputError(f"{path} is not a list of hosts.", hint=_FORMAT)
    return cast("list[dict[str, Any]]", document)


def _labels(value: object) -> dict[str, str]:
    if isinstance(value, dict):
        return {str(key): str(text) for key, text in cast("dict[Any, Any]", value).items()}
    return read_labels(str(value or ""))


def _taints(value: object) -> list[Taint]:
    """Taints such as `gpu=yes:NoSchedule;old:NoExecute`, or as in a Node."""
    if isinstance(value, list):
        return [Taint.read(cast("dict[str, Any]", each)) for each in cast("list[object]", value)]
    taints: list[Taint] = []
    for part in filter(None, (part.strip() for part in str(value or "").split(";"))):
        label, colon, effect = part.rpartition(":")
        if not colon:
            raise ValueError(f"{part!r} is not a taint: write key=value:effect")
        key, _, text = label.partition("=")
        taints.append(Taint.read({"key": key, "value": text, "effect": effect}))
    return taints


def _list(value: object) -> list[str]:
    if isinstance(value, list):
        return [str(item) for item in cast("list[object]", value)]
    return [str(value)] if value else []


def _explained(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        return ", ".join(
            f"{'.'.join(wire_name(str(part)) for part in problem['loc'])}: {problem['msg']}"
            for problem in error.errors()
        )
    return str(error)


def _duplicates(what: str, counts: Counter[str]) -> list[str]:
    return [
        f"{value} is the {what} of {count} hosts" for value, count in counts.items() if count > 1
    ]
