"""The Pulumi provider `capelin`, a plugin in Python: the binary `pulumi-resource-capelin`."""

import sys
from functools import partial
from importlib.metadata import version

from capelin_infra.plugin.provider import CapelinProvider
from capelin_infra.plugin.server import serve


def main() -> None:
    """Serve the engine that started the plugin."""
    number = version("capelin")
    serve(sys.argv[1:], number, partial(CapelinProvider, number))
