"""Writes the typed Python classes: `python -m infra.tests.python_classes`."""

import types
import typing
from pathlib import Path
from textwrap import fill, indent
from typing import Any, Final, Union, cast

from capelin.api import Model
from capelin_infra import resource_types
from capelin_infra.resource_types import RESOURCE_TYPES, ResourceType
from pydantic.alias_generators import to_snake
from pydantic.fields import FieldInfo

FILE: Final = Path(resource_types.__file__).with_name("resources.py")
_WIDTH: Final = 96
_HEAD: Final = '''\
"""The resources of the Pulumi provider `capelin`, for programs in Python.

Generated from `resource_types` by `python -m infra.tests.python_classes`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

import pulumi

from capelin_infra import resource_types
from capelin_infra.base_resource import BaseResource
'''


def python_classes() -> str:
    """The module's text."""
    nested: dict[str, type[Model]] = {}
    for kind in RESOURCE_TYPES:
        _find_nested(kind.inputs, nested)
    parts = [_HEAD]
    parts += [_typed_dict(model) for model in nested.values()]
    parts += [_resource(kind) for kind in RESOURCE_TYPES]
    return "\n\n".join(parts)


def _find_nested(model: type[Model], found: dict[str, type[Model]]) -> None:
    for field in model.model_fields.values():
        for part in _models_in(field.annotation):
            _find_nested(part, found)
            found.setdefault(part.__name__, part)


def _models_in(annotation: Any) -> list[type[Model]]:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _models_in(part)]


def _typed_dict(model: type[Model]) -> str:
    fields = [
        _attribute(
            field.alias or name,
            _type(field.annotation, optional=False)
            if field.is_required()
            else f"NotRequired[{_type(field.annotation, optional=False)}]",
            field,
        )
        for name, field in model.model_fields.items()
    ]
    return f"class {model.__name__}(TypedDict):\n{_docstring(model.__doc__)}\n\n" + "".join(fields)


def _resource(kind: ResourceType) -> str:
    inputs, state = kind.inputs.model_fields, kind.state.model_fields
    ordered = sorted(inputs.items(), key=lambda item: not item[1].is_required())
    parameters = "\n".join(_parameter(name, field) for name, field in ordered)
    attributes = "".join(
        _attribute(name, f"pulumi.Output[{_type(field.annotation, optional=True)}]", field)
        for name, field in state.items()
    )
    constant = to_snake(kind.name).upper()
    return f"""\
class {kind.name}(BaseResource):
{_docstring(kind.inputs.__doc__)}

    _kind = resource_types.{constant}

{attributes}
    def __init__(
        self,
        resource_name: str,
        *,
        opts: pulumi.ResourceOptions | None = None,
{indent(parameters, "        ")}
    ) -> None:
        super().__init__(resource_name, locals(), opts)
"""


def _parameter(name: str, field: FieldInfo) -> str:
    type_ = f"pulumi.Input[{_type(field.annotation, optional=False)}]"
    return f"{name}: {type_}," if field.is_required() else f"{name}: {type_} | None = None,"


def _attribute(name: str, type_: str, field: FieldInfo) -> str:
    return f"    {name}: {type_}\n{_docstring(field.description)}\n"


def _type(annotation: Any, *, optional: bool) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, parts))}]"
    if origin in {Union, types.UnionType}:
        names = [_type(part, optional=optional) for part in parts if part is not type(None)]
        return " | ".join([*names, "None"] if optional and type(None) in parts else names)
    if origin is typing.Annotated:
        return _type(parts[0], optional=optional)
    if origin is list:
        return f"Sequence[{_type(parts[0], optional=optional)}]"
    if origin is dict:
        return f"Mapping[{', '.join(_type(part, optional=optional) for part in parts)}]"
    # The SDK gives a program an object as a dict, and refuses outputs annotated otherwise.
    is_object = optional and issubclass(annotation, Model)
    return "Mapping[str, Any]" if is_object else cast("type", annotation).__name__


def _docstring(text: str | None) -> str:
    paragraphs = [
        fill(" ".join(paragraph.split()), _WIDTH - 4)
        for paragraph in (text or "").strip().split("\n\n")
    ]
    content = "\n\n".join(paragraphs)
    closing = "\n" if "\n" in content else ""
    return indent(f'"""{content}{closing}"""', "    ")


if __name__ == "__main__":
    FILE.write_text(python_classes(), encoding="utf-8")
