"""Reads the docstrings below fields from the source, on demand.

pydantic would read them for each class: half a second at the start of every process.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo


def described_fields(model: type[BaseModel]) -> Mapping[str, FieldInfo]:
    """The fields of a model with their descriptions: the explicit ones, else the docstrings."""
    fields = model.model_fields
    for name, field in fields.items():
        if field.description is None:
            field.description = _docstring(model, name)
    return fields


def _docstring(model: type[BaseModel], name: str) -> str | None:
    for base in model.__mro__:
        if name in inspect.get_annotations(base):
            return _docstrings(base.__module__).get((base.__qualname__, name))
    return None


@cache
def _docstrings(module: str) -> Mapping[tuple[str, str], str]:
    """All docstrings of fields in a module, by class and field. Empty without a source file."""
    file: Any = getattr(sys.modules.get(module), "__file__", None)
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, TypeError):
        return {}
    return dict(_found(tree, ""))


def _found(node: ast.AST, prefix: str) -> Iterator[tuple[tuple[str, str], str]]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef(name=name):
                yield from _of_class(child, prefix + name)
                yield from _found(child, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from _found(child, f"{prefix}{name}.<locals>.")
            case _:
                yield from _found(child, prefix)


def _of_class(node: ast.ClassDef, name: str) -> Iterator[tuple[tuple[str, str], str]]:
    for statement, following in zip(node.body, node.body[1:], strict=False):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=field)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield (name, field), inspect.cleandoc(text)
            case _:
                pass
