"""Command line arguments, the user's additions, and the files in them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

Value = str | int | bool | PurePath | Sequence[str] | Sequence[PurePath] | None
"""The value of a flag. Commas join a sequence. None omits the flag."""

ExtraArguments = Mapping[str, str]
"""Flags that a user adds, without their dashes."""


class OwnedFlagError(ValueError):
    """A user set a flag that only Capelin may set."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    certificate: PurePath
    key: PurePath


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """Files for a TLS client: a CA to trust and its own certificate."""

    ca: PurePath
    certificate: PurePath
    key: PurePath


def command_line(
    ours: Mapping[str, Value],
    *,
    extra: ExtraArguments,
    owned: Collection[str],
    features: Mapping[str, bool] | None = None,
) -> tuple[str, ...]:
    """The arguments of a component, flags in alphabetical order.

    A user's value replaces ours. This rejects owned flags, and merges feature gates one by one.
    """
    check_extra(extra, owned)
    flags = {flag: text for flag, value in ours.items() if (text := _text(value)) is not None}
    flags |= extra
    gates = {gate: _text(on) or "" for gate, on in (features or {}).items()}
    gates |= parse_feature_gates(extra.get("feature-gates", ""))
    if gates:
        flags["feature-gates"] = ",".join(f"{gate}={on}" for gate, on in sorted(gates.items()))
    return tuple(f"--{flag}={text}" for flag, text in sorted(flags.items()))


def check_extra(extra: ExtraArguments, owned: Collection[str]) -> None:
    """Raise ValueError for flags that a user may not set, and for names that are not flags."""
    for flag in sorted(extra):
        if flag.startswith("-") or not flag.strip() or "=" in flag:
            raise ValueError(
                f"{flag!r} is not the name of a flag. Write it without dashes and value"
            )
        if flag in owned:
            raise OwnedFlagError(f"--{flag} is set by Capelin and cannot be changed. Remove it")


def parse_feature_gates(text: str) -> dict[str, str]:
    """Parse feature gates as users write them: `A=true,B=false`."""
    gates: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        gate, equals, on = part.partition("=")
        if not equals or on not in {"true", "false"}:
            raise ValueError(f"{part!r} is not a feature gate. Write Name=true or Name=false")
        gates[gate.strip()] = on
    return gates


def _text(value: Value) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case str() | int() | PurePath():
            return str(value)
        case _:
            return ",".join(map(str, value)) if value else None
