"""The base of every type that travels to or from Kubernetes."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Model(BaseModel):
    """A piece of a Kubernetes object: snake_case in Python, camelCase on the wire.

    Building one in code is strict: a name that does not exist is an error. Reading one is
    tolerant: fields that a newer API server, or another provider, adds are passed over.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        serialize_by_alias=True,
        use_attribute_docstrings=True,
        validate_by_alias=True,
        validate_by_name=True,
    )

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
        return self.model_dump(mode="json", exclude_unset=True, exclude_none=True)
