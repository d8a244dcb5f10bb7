"""The command line of an extension."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from capelin.runtime.extension import Extension, InvalidExtensionError
from capelin.runtime.server.metrics import is_loopback
from capelin.runtime.server.process import PortTakenError, Process, listen
from capelin.runtime.server.tls import CertificateError, Certificates

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    host: str
    port: int
    probes_port: int
    cert_dir: Path
    client_ca: Path | None
    drain_seconds: float
    log_level: str
    metrics_token_file: Path | None = None
    allow_any_client: bool = False


class AnonymousClientsError(Exception):
    """Clients that show no certificate could call from other machines; says what to do."""


def options(name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Read the command line, over the environment, over the defaults."""
    parser = argparse.ArgumentParser(
        prog=name,
        description=f"Serve the Runtime Extension {name} to Cluster API.",
        epilog="The environment has the same options: CAPELIN_CERT_DIR is --cert-dir.",
    )

    def option(flag: str, default: object, text: str, kind: Callable[[str], object]) -> None:
        variable = f"CAPELIN_{flag.upper().replace('-', '_')}"
        default = environment.get(variable, default)
        parser.add_argument(f"--{flag}", default=default, type=kind, help=f"{text} (%(default)s)")

    option("host", "", "address to listen on, empty for all; loopback without --client-ca", str)
    option("port", 9443, "port for Cluster API, in HTTPS", _port)
    option("probes-port", 9440, "port for /healthz, /readyz and /metrics, in HTTP", _port)
    # Not in /tmp as Cluster API's own, where anybody on the machine can put a certificate.
    config = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/"), ".config")
    cert_dir = Path(config, "capelin", name)
    option("cert-dir", cert_dir, "folder of tls.crt and tls.key", Path)
    option(
        "client-ca",
        None,
        "file with the CA of the clients, which then must show certificates",
        Path,
    )
    option(
        "metrics-token-file",
        None,
        "file with the token for /metrics; without it only this machine gets them",
        Path,
    )
    option(
        "drain-seconds", 5, "how long to go on after SIGTERM, until callers go elsewhere", _seconds
    )
    option("log-level", "info", "debug, info, warning or error", _level)
    parser.add_argument(
        "--allow-any-client",
        action="store_true",
        default=environment.get("CAPELIN_ALLOW_ANY_CLIENT") == "true",
        help="listen on other than loopback addresses without --client-ca; anybody who reaches them"
        " can then call the hooks",
    )
    return Options(**vars(parser.parse_args(arguments)))


def host_of(chosen: Options) -> str:
    """The address on which to serve the hooks.

    Raises:
        AnonymousClientsError: without a client CA, it has to be a loopback address.
    """
    if chosen.client_ca is not None or chosen.allow_any_client:
        return chosen.host
    if chosen.host in ("", "localhost"):
        return "127.0.0.1"
    if not is_loopback(chosen.host):
        raise AnonymousClientsError(
            f"refusing to listen on {chosen.host} without --client-ca: anybody who reaches the"
            " extension could call its hooks; set --client-ca to the CA of Cluster API's client"
            " certificate, or --allow-any-client"
        )
    return chosen.host


def serve(extension: Extension, arguments: Sequence[str] | None = None) -> NoReturn:
    """Serve an extension until SIGTERM, as the command line or environment says; see `--help`."""
    sys.exit(run(extension, arguments))


def run(extension: Extension, arguments: Sequence[str] | None = None) -> int:
    """Serve an extension and return the exit code."""
    chosen = options(extension.name, sys.argv[1:] if arguments is None else arguments, os.environ)
    logging.basicConfig(
        format="%(asctime)s %(levelname)-7s %(message)s",
        level=chosen.log_level.upper(),
        stream=sys.stderr,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        extension.check()
        certificates = Certificates(chosen.cert_dir, chosen.client_ca)
        hooks = listen(host_of(chosen), chosen.port)
        probes = listen(chosen.host, chosen.probes_port)
    except (
        AnonymousClientsError,
        InvalidExtensionError,
        CertificateError,
        PortTakenError,
    ) as problem:
        _log.error("%s", problem)
        return 1
    _log.info(
        "serving %s handlers on https port %s%s, probes on http port %s",
        len(extension.handlers),
        hooks.getsockname()[1],
        "" if chosen.client_ca or chosen.allow_any_client else " of loopback addresses only",
        probes.getsockname()[1],
    )
    Process(
        extension, hooks, probes, certificates, chosen.drain_seconds, chosen.metrics_token_file
    ).run()
    return 0


def _port(text: str) -> int:
    return _whole(text, 0, 65535)


def _whole(text: str, low: int, high: int) -> int:
    if not (text.isdecimal() and low <= int(text) <= high):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to 3600")
    return seconds


def _level(text: str) -> str:
    if text not in {"debug", "info", "warning", "error"}:
        raise argparse.ArgumentTypeError(f"{text!r} is not debug, info, warning or error")
    return text
