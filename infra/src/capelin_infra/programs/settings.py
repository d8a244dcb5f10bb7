"""Typed settings of a program, from the configuration of its Pulumi project."""

from typing import Any, Final, TypeVar

import pulumi
from capelin.api import Model
from pydantic import ValidationError

ModelT = TypeVar("ModelT", bound=Model)


def settings(model: type[ModelT], config: pulumi.Config | None = None) -> ModelT:
    """The settings that the stack has, checked.

    Raises:
        pulumi.RunError: with every invalid value.
    """
    source = pulumi.Config() if config is None else config
    values = {
        field.alias or name: value
        for name, field in model.model_fields.items()
        if (value := source.get(field.alias or name)) is not None
    }
    try:
        # The engine keeps numbers and switches as text.
        return model.model_validate(values, strict=False)
    except ValidationError as error:
        problems = "\n".join(
            f"  {'.'.join(map(str, problem['loc']))}: {problem['msg']}"
            for problem in error.errors()
        )
        raise pulumi.RunError(f"the configuration cannot be used:\n{problems}") from None


_TYPES: Final = {"string": "string", "integer": "integer", "boolean": "boolean"}


def project_config(model: type[Model]) -> dict[str, Any]:
    """The block `config` of `Pulumi.yaml`: types, defaults and descriptions of the settings."""
    described: dict[str, dict[str, Any]] = model.model_json_schema(by_alias=True)["properties"]
    return {
        name: {
            "type": _TYPES[schema.get("type", "string")],
            **({"default": schema["default"]} if "default" in schema else {}),
            "description": " ".join(str(schema["description"]).split()),
        }
        for name, schema in described.items()
    }
