"""Names that `import capelin` exports."""

import subprocess
import sys
from importlib import import_module

import capelin
import pytest


@pytest.mark.parametrize("name", capelin.__all__)
def test_an_exported_name_is_that_of_its_module(name: str) -> None:
    module = import_module(f"capelin.{capelin._ROOMS[name]}")  # pyright: ignore[reportPrivateUsage]
    assert getattr(capelin, name) is getattr(module, name)


def test_importing_capelin_imports_no_submodule() -> None:
    code = "import capelin, sys; print([m for m in sys.modules if m.startswith('capelin.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = capelin.nonsense


def test_importing_provider_does_not_import_kopf() -> None:
    code = "import capelin.provider, sys; capelin.provider.Provider; print('kopf' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
