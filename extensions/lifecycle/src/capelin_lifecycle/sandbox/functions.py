"""The functions that Kubernetes adds to CEL: quantities, versions, addresses, texts and lists.

An opaque value, such as the result of `quantity()`, is a map with one key.
"""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
# CEL calls these functions, with values of the types that they declare.

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from ipaddress import ip_address, ip_network
from typing import Any, Final

from capelin.api import amount
from capelin.versions import Version
from cel_expr_python import cel

QUANTITY: Final = "k8s.quantity"
_AMOUNT: Final = re.compile(
    r"[+-]?([0-9]{1,160}(\.[0-9]{0,160})?|\.[0-9]{1,160})([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?"
)
"""A quantity in Kubernetes' format, with bounds on its digits."""
_LONGEST_SHOWN: Final = 64
_SEMVER: Final = "k8s.semver"
_IP: Final = "k8s.ip"
_CIDR: Final = "k8s.cidr"

_Value = dict[str, str]

_BOOL, _INT, _STRING, _MAP, _LIST, _DYN = (
    cel.Type.BOOL,
    cel.Type.INT,
    cel.Type.STRING,
    cel.Type.MAP,
    cel.Type.LIST,
    cel.Type.DYN,
)
Overload = tuple[Sequence[Any], Any, Callable[..., Any]]


def declarations() -> list[Any]:
    functions: dict[str, list[Any]] = {}
    for member, table in ((False, _GLOBALS), (True, _MEMBERS)):
        for name, overloads in table.items():
            for number, (parameters, result, implementation) in enumerate(overloads):
                functions.setdefault(name, []).append(
                    cel.Overload(
                        f"capelin_{name}_{'member' if member else 'global'}_{number}",
                        return_type=result,
                        parameters=parameters,
                        is_member=member,
                        impl=implementation,
                    )
                )
    return [cel.FunctionDecl(name, overloads) for name, overloads in functions.items()]


def read_amount(text: str) -> Decimal:
    """The value of a quantity.

    Raises:
        ValueError: it is not a quantity, or has too many digits to write out.
    """
    if not _AMOUNT.fullmatch(text):
        shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
        raise ValueError(f"{shown!r} is not a quantity: write 500m, 1.5Gi or 4")
    return amount(text)


def _quantity(text: str) -> _Value:
    read_amount(text)
    return {QUANTITY: text}


def _semver(text: str, normalize: bool = False) -> _Value:  # noqa: FBT001, FBT002 - as Kubernetes has it
    if normalize:
        text = text.removeprefix("v")
        text += ".0" * (2 - text.partition("-")[0].count("."))
    if text.startswith("v"):
        raise ValueError(f"{text} is not a semantic version: use semver({text!r}, true)")
    return {_SEMVER: str(Version.parse(text))}


def _ip(text: str) -> _Value:
    return {_IP: str(ip_address(text))}


def _cidr(text: str) -> _Value:
    ip_network(text, strict=False)
    return {_CIDR: text}


def _parses(parse: Callable[..., object], *arguments: object) -> bool:
    try:
        parse(*arguments)
    except ValueError:
        return False
    return True


def _order(value: _Value) -> Any:
    """The sort key of a quantity or version."""
    if QUANTITY in value:
        return _amount(value)
    return Version.parse(value[_SEMVER])


def _compare(first: _Value, second: _Value) -> int:
    a, b = _order(first), _order(second)
    return (a > b) - (a < b)


def _amount(value: _Value) -> Decimal:
    # Expressions can write such a map themselves.
    return read_amount(value[QUANTITY])


def _sum_of(first: _Value, second: _Value | int, sign: int = 1) -> _Value:
    other = Decimal(second) if isinstance(second, int) else _amount(second)
    return {QUANTITY: f"{_amount(first) + sign * other:f}"}


def _contains(network: _Value, address: _Value | str) -> bool:
    text = address if isinstance(address, str) else address[_IP]
    return ip_address(text) in ip_network(network[_CIDR], strict=False)


def _split(text: str, separator: str) -> list[str]:
    return text.split(separator) if separator else list(text)


def _join(texts: Sequence[str], separator: str = "") -> str:
    return separator.join(texts)


_GLOBALS: dict[str, list[Overload]] = {
    "quantity": [([_STRING], _MAP, _quantity)],
    "isQuantity": [([_STRING], _BOOL, lambda text: _parses(read_amount, text))],
    "semver": [([_STRING], _MAP, _semver), ([_STRING, _BOOL], _MAP, _semver)],
    "isSemver": [
        ([_STRING], _BOOL, lambda text: _parses(_semver, text)),
        ([_STRING, _BOOL], _BOOL, lambda text, normalize: _parses(_semver, text, normalize)),
    ],
    "ip": [([_STRING], _MAP, _ip)],
    "isIP": [([_STRING], _BOOL, lambda text: _parses(ip_address, text))],
    "cidr": [([_STRING], _MAP, _cidr)],
    "isCIDR": [([_STRING], _BOOL, lambda text: _parses(_cidr, text))],
}
_MEMBERS: dict[str, list[Overload]] = {
    "isGreaterThan": [([_MAP, _MAP], _BOOL, lambda a, b: _compare(a, b) > 0)],
    "isLessThan": [([_MAP, _MAP], _BOOL, lambda a, b: _compare(a, b) < 0)],
    "compareTo": [([_MAP, _MAP], _INT, _compare)],
    "add": [([_MAP, _MAP], _MAP, _sum_of), ([_MAP, _INT], _MAP, _sum_of)],
    "sub": [
        ([_MAP, _MAP], _MAP, lambda a, b: _sum_of(a, b, -1)),
        ([_MAP, _INT], _MAP, lambda a, b: _sum_of(a, b, -1)),
    ],
    "asInteger": [([_MAP], _INT, lambda a: int(_amount(a)))],
    "major": [([_MAP], _INT, lambda a: Version.parse(a[_SEMVER]).major)],
    "minor": [([_MAP], _INT, lambda a: Version.parse(a[_SEMVER]).minor)],
    "patch": [([_MAP], _INT, lambda a: Version.parse(a[_SEMVER]).patch)],
    "family": [([_MAP], _INT, lambda a: ip_address(a[_IP]).version)],
    "isLoopback": [([_MAP], _BOOL, lambda a: ip_address(a[_IP]).is_loopback)],
    "containsIP": [([_MAP, _MAP], _BOOL, _contains), ([_MAP, _STRING], _BOOL, _contains)],
    "lowerAscii": [([_STRING], _STRING, str.lower)],
    "upperAscii": [([_STRING], _STRING, str.upper)],
    "trim": [([_STRING], _STRING, str.strip)],
    "split": [([_STRING, _STRING], _LIST, _split)],
    "replace": [([_STRING, _STRING, _STRING], _STRING, str.replace)],
    "join": [([_LIST], _STRING, _join), ([_LIST, _STRING], _STRING, _join)],
    "sum": [([_LIST], _DYN, sum)],
    "min": [([_LIST], _DYN, min)],
    "max": [([_LIST], _DYN, max)],
}
