"""The server of the extension, with the reconcilers of its policies beside it."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from capelin.client import Config
from capelin.runtime.server import serve

from capelin_lifecycle.engine import Engine, EngineOptions
from capelin_lifecycle.extension import NAME, build

_EPILOG = "The flags of every extension follow."


def parse(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[EngineOptions, list[str]]:
    """The engine's own options, and the flags that are left for the server."""
    parser = argparse.ArgumentParser(NAME, add_help=False, allow_abbrev=False, epilog=_EPILOG)
    parser.add_argument(
        "--leader-elect",
        nargs="?",
        const="true",
        choices=("true", "false"),
        default=environment.get("CAPELIN_LEADER_ELECT", "false"),
        help="run the reconcilers only on the replica that holds a lease; for several replicas",
    )
    parser.add_argument(
        "--extension-config",
        default=environment.get("CAPELIN_EXTENSION_CONFIG", NAME),
        help="name of the extension's ExtensionConfig (%(default)s)",
    )
    known, others = parser.parse_known_args(arguments)
    if {"-h", "--help"} & set(others):
        parser.print_help()
    options = EngineOptions(
        leader_elect=known.leader_elect == "true", extension_config=known.extension_config
    )
    return options, others


def main() -> None:
    """Serve until SIGTERM."""
    options, others = parse(sys.argv[1:], os.environ)
    serve(build(Engine(Config.find, options)), others)


if __name__ == "__main__":
    main()
