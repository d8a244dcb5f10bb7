"""The server of an extension: HTTPS for hooks, and probes and metrics in plain HTTP."""

from capelin.runtime.server.app import App
from capelin.runtime.server.cli import Options, read_options, serve

__all__ = ["App", "Options", "read_options", "serve"]
