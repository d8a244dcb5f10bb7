"""Records the public Python names, which a release promises: `python -m tools.public_names`."""

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Final

RECORD: Final = Path(__file__).parents[1] / "docs" / "reference" / "public-names.txt"
MODULES: Final = (
    "capelin",
    "capelin.api",
    "capelin.api.capi",
    "capelin.api.core",
    "capelin.client",
    "capelin.contract",
    "capelin.controller",
    "capelin.errors",
    "capelin.pki",
    "capelin.provider",
    "capelin.runtime",
    "capelin.runtime.client",
    "capelin.runtime.server",
    "capelin.runtime.topology",
    "capelin.runtime.v1alpha1",
    "capelin.testing.conversions",
    "capelin.testing.extensions",
    "capelin.testing.fake_client",
    "capelin.testing.managers",
    "capelin.testing.waiting",
    "capelin_conformance.extensions",
    "capelin_embedded.testing.webhooks",
    "capelin_release.repository",
)
"""The modules that providers and extensions import from."""


def public_names() -> list[str]:
    """Every public name with its module, as `capelin.provider.Blocked`."""
    modules = map(importlib.import_module, MODULES)
    return [f"{module.__name__}.{name}" for module in modules for name in _names(module)]


def _names(module: ModuleType) -> list[str]:
    """What a module exports; without `__all__`, the classes and functions that it defines."""
    exported: list[str] | None = getattr(module, "__all__", None)
    if exported is not None:
        return sorted(exported)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    )


def recorded_names() -> list[str]:
    """The public names of the last release."""
    return RECORD.read_text().split()


def main() -> None:
    """Record the names as they are now."""
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text("".join(f"{name}\n" for name in public_names()))


if __name__ == "__main__":
    main()
