"""What `import capelin` gives."""

import subprocess
import sys
from importlib import import_module

import capelin
import pytest


@pytest.mark.parametrize("name", capelin.__all__)
def test_a_name_is_that_of_its_room(name: str) -> None:
    room = import_module(f"capelin.{capelin._ROOMS[name]}")  # pyright: ignore[reportPrivateUsage]
    assert getattr(capelin, name) is getattr(room, name)


def test_importing_it_imports_no_room() -> None:
    code = "import capelin, sys; print([m for m in sys.modules if m.startswith('capelin.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = capelin.nonsense


def test_installing_a_provider_needs_no_controller() -> None:
    code = "import capelin.provider, sys; capelin.provider.Provider; print('kopf' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
