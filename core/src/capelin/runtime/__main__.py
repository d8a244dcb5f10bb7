"""What a release of hooks is accompanied by: `python -m capelin.runtime`."""

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path

from capelin.runtime.catalog import Catalog, CatalogError, catalog_at
from capelin.runtime.evolution import Release
from capelin.runtime.openapi import openapi_document
from capelin.runtime.releases import BreakingChangesError, Snapshot


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit code."""
    chosen = _parser().parse_args(arguments)
    if chosen.verb == "openapi":
        document = openapi_document(chosen.catalog, title=chosen.title, version=chosen.release)
        print(json.dumps(document, indent=2))  # noqa: T201
        return 0
    return _snapshot(chosen.file, chosen.catalog, Release(chosen.release, chosen.date))


def _snapshot(file: Path, catalog: Catalog, release: Release) -> int:
    try:
        if file.exists():
            taken = Snapshot.read(file.read_text()).followed_by(catalog, release)
        else:
            taken = Snapshot.of(catalog, release)
    except BreakingChangesError as refusal:
        print(*refusal.problems, sep="\n", file=sys.stderr)  # noqa: T201
        return 1
    file.write_text(taken.text())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m capelin.runtime", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    openapi = verbs.add_parser("openapi", help="print the OpenAPI document of a catalog's hooks")
    openapi.add_argument("--title", default="Runtime SDK", help="(%(default)s)")
    openapi.add_argument("--release", default=version("capelin-core"), help="(%(default)s)")
    snapshot = verbs.add_parser(
        "snapshot",
        help="write down what a release of a catalog promises, unless it breaks what stands there",
    )
    snapshot.add_argument("file", type=Path, metavar="FILE")
    snapshot.add_argument("--release", required=True, help="its version")
    today = datetime.now(UTC).date()
    snapshot.add_argument("--date", type=date.fromisoformat, default=today, help="(%(default)s)")
    for verb in (openapi, snapshot):
        verb.add_argument(
            "--catalog",
            type=_catalog,
            default="capelin.runtime.v1alpha1:CLUSTER_API",
            help="as module:name (%(default)s)",
        )
    return parser


def _catalog(place: str) -> Catalog:
    try:
        return catalog_at(place)
    except CatalogError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
