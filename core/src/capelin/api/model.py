"""The base of every type that travels to or from Kubernetes."""

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, cast

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from capelin.api.rules import Rule

_ACRONYMS = re.compile(
    r"(?<=_)(api|ca|cidr|cpu|dns|fqdn|http|https|id|ip|san|ssh|tls|uid|uri|url|uuid|vm)(s?)(?=_|$)"
)


def wire_name(name: str) -> str:
    """The name of a field on the wire: `provider_id_list` is `providerIDList`.

    Kubernetes writes acronyms in capitals, except where they open a name: `caBundle`, `podCIDRs`.
    """
    shouted = _ACRONYMS.sub(lambda found: found[1].upper() + found[2], name)
    first, *rest = shouted.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


class Model(BaseModel):
    """A piece of a Kubernetes object: snake_case in Python, camelCase on the wire.

    Building one in code is strict: a name that does not exist is an error, and so is "3" for 3.
    Reading one is tolerant: fields that a newer API server, or another provider, adds are passed
    over. Types are those of JSON: lists rather than tuples, `Literal` rather than enums.
    """

    model_config = ConfigDict(
        alias_generator=wire_name,
        extra="forbid",
        serialize_by_alias=True,
        strict=True,
        use_attribute_docstrings=True,
        validate_by_alias=True,
        validate_by_name=True,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    """What the API server checks of the fields together."""

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Read what an API server sent, passing over what this model does not know."""
        return cls.model_validate(data, extra="ignore")

    @classmethod
    def read_json(cls, data: bytes | str) -> Self:
        """Read JSON, passing over what this model does not know."""
        return cls.model_validate_json(data, extra="ignore")

    def dump(self) -> dict[str, Any]:
        """What was said, as JSON-ready values: neither unset fields nor `None`."""
        _say_what_changed(self)
        return self.model_dump(mode="json", exclude_unset=True, exclude_none=True)


def _say_what_changed(part: object) -> None:
    """Count as said what was changed inside a default: `secret.metadata.labels["a"] = "b"`."""
    if isinstance(part, Model):
        said, fields = part.__pydantic_fields_set__, part.__pydantic_fields__
        for name, value in vars(part).items():
            if name not in said:
                if value is None or value == _default(fields[name]):
                    continue
                said.add(name)
            if isinstance(value, _CONTAINERS):
                _say_what_changed(cast("object", value))
    elif isinstance(part, list):
        for item in cast("list[object]", part):
            _say_what_changed(item)
    elif isinstance(part, dict):
        for item in cast("dict[str, object]", part).values():
            _say_what_changed(item)


_CONTAINERS = (Model, list, dict)


def _default(field: FieldInfo) -> object:
    # FieldInfo.get_default would copy what is only looked at here.
    make = cast("Callable[[], object] | None", field.default_factory)
    return make() if make else field.default
