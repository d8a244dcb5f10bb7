"""The Pulumi provider `capelin`, a plugin in Python: the binary `pulumi-resource-capelin`."""

import sys
from functools import partial
from importlib.metadata import version

from capelin_infra.plugin.provider import CapelinProvider
from capelin_infra.plugin.server import serve
from capelin_infra.resource_types import semantic_version


def main() -> None:
    """Serve the engine that started the plugin."""
    number = semantic_version(version("capelin"))
    serve(sys.argv[1:], number, partial(CapelinProvider, number))
