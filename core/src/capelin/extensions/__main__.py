"""The program: `python -m capelin.extensions`."""

import sys
from dataclasses import dataclass

from capelin.controller import Options, flag, main
from capelin.extensions.controller import Extensions
from capelin.runtime import Catalog, catalog_at
from capelin.runtime.v1alpha1 import CLUSTER_API


def known_hooks(text: str) -> Catalog:
    """Cluster API's hooks, and those of the catalogs at these places, between commas.

    Raises:
        CatalogError: a catalog is not there, or two do not go together.
    """
    return CLUSTER_API.joined(*(catalog_at(place.strip()) for place in text.split(",")))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionsOptions(Options):
    """What every manager can be told, and which hooks it knows."""

    catalog: Catalog = flag(
        CLUSTER_API,
        known_hooks,
        "Know the hooks of these catalogs too: each as module:name, with commas between them.",
        shown="Cluster API's hooks alone",
    )


def build(options: ExtensionsOptions) -> list[Extensions]:
    """The controller."""
    return [Extensions(catalog=options.catalog)]


if __name__ == "__main__":
    sys.exit(main("capelin-extensions", build, ExtensionsOptions))
