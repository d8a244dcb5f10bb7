"""The Pulumi provider `capelin`, a plugin in Python: the program `pulumi-resource-capelin`."""

import sys
from functools import partial
from importlib.metadata import version


def main() -> None:
    """Serve the engine that started the plugin."""
    try:
        from capelin_infra.pulumi.plugin.provider import CapelinProvider  # noqa: PLC0415 - an extra
        from capelin_infra.pulumi.plugin.server import serve  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"pulumi", "grpc", "google"}:
            raise
        sys.exit(
            f"The Pulumi provider needs the package {error.name}: pip install 'capelin[pulumi]'"
        )
    number = version("capelin")
    serve(sys.argv[1:], number, partial(CapelinProvider, number))
