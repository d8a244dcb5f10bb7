"""The base class of all types of Kubernetes objects and their parts."""

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
    """The name of a field in JSON: `provider_id_list` is `providerIDList`.

    Kubernetes writes acronyms in capitals, except where they open a name: `caBundle`, `podCIDRs`.
    """
    shouted = _ACRONYMS.sub(lambda found: found[1].upper() + found[2], name)
    first, *rest = shouted.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


class Model(BaseModel):
    """A part of a Kubernetes object: snake_case in Python, camelCase in JSON.

    Building one in code is strict: an unknown name is an error, and so is "3" for 3. Reading one is
    tolerant: it ignores fields that a newer API server, or another provider, adds. Types are those
    of JSON: lists rather than tuples, `Literal` rather than enums.
    """

    model_config = ConfigDict(
        alias_generator=wire_name,
        extra="forbid",
        serialize_by_alias=True,
        strict=True,
        validate_by_alias=True,
        validate_by_name=True,
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    """CEL rules about several fields."""

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Read an object from an API server. Unknown fields are ignored."""
        return cls.model_validate(data, extra="ignore")

    @classmethod
    def read_json(cls, data: bytes | str) -> Self:
        """Read JSON from an API server. Unknown fields are ignored."""
        return cls.model_validate_json(data, extra="ignore")

    def dump(self) -> dict[str, Any]:
        """The fields that were set, as JSON values, without `None`."""
        _mark_changed_defaults(self)
        return self.model_dump(mode="json", exclude_unset=True, exclude_none=True)


class DescribedModel(Model):
    """A model whose fields pydantic's own JSON schema describes too. It takes longer to define."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def _mark_changed_defaults(part: object) -> None:
    """Mark defaults that were changed in place as set: `secret.metadata.labels["a"] = "b"`."""
    if isinstance(part, Model):
        fields_set, fields = part.__pydantic_fields_set__, part.__pydantic_fields__
        for name, value in vars(part).items():
            if name not in fields_set:
                if value is None or value == _default(fields[name]):
                    continue
                fields_set.add(name)
            if isinstance(value, _CONTAINERS):
                _mark_changed_defaults(cast("object", value))
    elif isinstance(part, list):
        for item in cast("list[object]", part):
            _mark_changed_defaults(item)
    elif isinstance(part, dict):
        for item in cast("dict[str, object]", part).values():
            _mark_changed_defaults(item)


_CONTAINERS = (Model, list, dict)


def _default(field: FieldInfo) -> object:
    # FieldInfo.get_default would copy the value.
    make = cast("Callable[[], object] | None", field.default_factory)
    return make() if make else field.default
