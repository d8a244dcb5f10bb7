"""Property values of the engine as JSON values, and back. Unknown ones are set apart."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, cast

from pulumi.provider.experimental.property_value import PropertyValue, PropertyValueType
from pulumi.runtime import rpc

UNKNOWN: Final = rpc.UNKNOWN
"""The placeholder of an unknown value between the engine and a plugin.

The SDK's own type for it, `Computed`, can neither be sent (`marshal` refuses it) nor does it come.
"""

Properties = Mapping[str, PropertyValue]


def known_values(properties: Properties) -> tuple[dict[str, Any], set[str]]:
    """The JSON values of properties, and the names of those that are not known during a preview."""
    unknown = {name for name, value in properties.items() if _contains_unknown(value)}
    known = {
        name: _plain(value)
        for name, value in properties.items()
        if name not in unknown and value.type is not PropertyValueType.NULL
    }
    # The engine keeps notes of its own among them.
    return {name: value for name, value in known.items() if not name.startswith("__")}, unknown


def property_values(
    values: Mapping[str, Any], *, secrets: AbstractSet[str], unknown: AbstractSet[str]
) -> dict[str, PropertyValue]:
    """JSON values in the engine's format. The state encrypts `secrets`."""
    properties = {name: _wrapped(value) for name, value in values.items()}
    properties |= {name: PropertyValue(UNKNOWN) for name in unknown}
    return {
        name: value.with_secret(is_secret=True) if name in secrets else value
        for name, value in properties.items()
    }


def _contains_unknown(value: PropertyValue) -> bool:
    match value.type:
        case PropertyValueType.STRING:
            return value.value == UNKNOWN
        case PropertyValueType.ARRAY:
            return any(map(_contains_unknown, cast("Sequence[PropertyValue]", value.value)))
        case PropertyValueType.MAP:
            return any(
                map(_contains_unknown, cast("Mapping[str, PropertyValue]", value.value).values())
            )
        case _:
            return False


def _plain(value: PropertyValue) -> Any:
    content: Any = value.value
    match value.type:
        case PropertyValueType.ARRAY:
            return [_plain(item) for item in content]
        case PropertyValueType.MAP:
            return {name: _plain(item) for name, item in content.items()}
        case PropertyValueType.NUMBER:
            # The engine has no integers.
            return int(content) if content.is_integer() else content
        case _:
            return content


def _wrapped(value: Any) -> PropertyValue:
    match value:
        case Mapping():
            items = cast("Mapping[str, Any]", value).items()
            return PropertyValue({name: _wrapped(item) for name, item in items})
        case list():
            return PropertyValue([_wrapped(item) for item in cast("list[Any]", value)])
        case int() if not isinstance(value, bool):
            return PropertyValue(float(value))
        case _:
            return PropertyValue(value)
