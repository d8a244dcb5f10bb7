"""The environment holds secrets: `help()` and generated documentation must not show it."""

import importlib
import inspect
import os
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import capelin
import pytest

_NOT_IMPORTABLE = ("__main__", "plugin")


def modules() -> Iterator[str]:
    for module in pkgutil.walk_packages(capelin.__path__, "capelin."):
        if not module.name.endswith(_NOT_IMPORTABLE):
            yield module.name


def functions(module: ModuleType) -> Iterator[Any]:
    for value in list(vars(module).values()):
        if inspect.isclass(value) and value.__module__ == module.__name__:
            yield from (
                getattr(method, "__func__", method) for method in list(vars(value).values())
            )
        elif inspect.isfunction(value):
            yield value


@pytest.mark.parametrize("name", list(modules()))
def test_help_does_not_print_the_environment(name: str) -> None:
    for function in filter(inspect.isfunction, functions(importlib.import_module(name))):
        for parameter in inspect.signature(function).parameters.values():
            # Without the comparison in the assert, a failure does not print it either.
            is_environment = parameter.default is os.environ
            assert not is_environment, f"{function.__qualname__}({parameter.name})"
