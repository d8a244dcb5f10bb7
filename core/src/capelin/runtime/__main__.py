"""Prints the OpenAPI document of a catalog's hooks: `python -m capelin.runtime openapi`."""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version

from capelin.runtime.catalog import Catalog, load_catalog
from capelin.runtime.openapi import openapi_document
from capelin.runtime.versions import CatalogError


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    document = openapi_document(options.catalog, title=options.title, version=options.release)
    print(json.dumps(document, indent=2))  # noqa: T201
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m capelin.runtime", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    openapi = verbs.add_parser("openapi", help="print the OpenAPI document of a catalog's hooks")
    openapi.add_argument("--title", default="Runtime SDK", help="(%(default)s)")
    openapi.add_argument("--release", default=version("capelin-core"), help="(%(default)s)")
    openapi.add_argument(
        "--catalog",
        type=_catalog,
        default="capelin.runtime.v1alpha1:CLUSTER_API",
        help="as module:name (%(default)s)",
    )
    return parser


def _catalog(reference: str) -> Catalog:
    try:
        return load_catalog(reference)
    except CatalogError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
