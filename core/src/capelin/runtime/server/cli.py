"""The command line of an extension."""

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

from capelin import tracing
from capelin.flags import (
    OptionsError,
    flag,
    number_from,
    one_of,
    parse,
    report,
    seconds_up_to,
    truth,
)
from capelin.hosts import is_loopback
from capelin.runtime.extension import Extension, InvalidExtensionError
from capelin.runtime.server.process import PortTakenError, Process, listen
from capelin.tls import CertificateError, Certificates

_log = logging.getLogger(__name__)

OptionsT = TypeVar("OptionsT", bound="Options")

_PORT = number_from(0, 65535)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of every extension. Extensions with additional options inherit from this."""

    host: str = flag(
        "", str, "Address to listen on, empty for all. Without --client-ca: loopback.", shown="all"
    )
    port: int = flag(9443, _PORT, "Port for Cluster API, in HTTPS.")
    probes_port: int = flag(9440, _PORT, "Port for /healthz, /readyz and /metrics, in HTTP.")
    cert_dir: Path | None = flag(
        None, Path, "Folder of tls.crt and tls.key.", shown="~/.config/capelin/NAME"
    )
    client_ca: Path | None = flag(
        None,
        Path,
        "File with the CA of the clients, which then must present certificates.",
        shown="none",
    )
    metrics_token_file: Path | None = flag(
        None,
        Path,
        "File with the token for /metrics. Without it, only this machine can read them.",
        shown="none",
    )
    drain_seconds: float = flag(
        5.0,
        seconds_up_to(3600),
        "How long to serve after SIGTERM, until callers have left.",
        shown="5s",
    )
    log_level: str = flag(
        "info", one_of("debug", "info", "warning", "error"), "The least severe lines to log."
    )
    allow_any_client: bool = flag(
        False,  # noqa: FBT003 - the flag's default
        truth,
        "Listen on other than loopback addresses without --client-ca. Everyone who can reach them "
        "can then call the hooks.",
        shown="false",
    )


class AnonymousClientsError(Exception):
    """Clients without a certificate could call from other machines. The message has the remedy."""


def read_options(
    kind: type[OptionsT], name: str, arguments: Sequence[str] | None = None, *, more: str = ""
) -> OptionsT:
    """Read the command line, over the environment, over the defaults.

    `more` is a sentence for `--help`. If an option is invalid, this prints the problem and exits
    with code 2.
    """
    description = f"Serve the Runtime Extension {name} to Cluster API. {more}".strip()
    try:
        return parse(kind, name, description, sys.argv[1:] if arguments is None else arguments)
    except OptionsError as error:
        report(name, error)
        sys.exit(2)


def cert_dir_of(chosen: Options, name: str, environment: Mapping[str, str]) -> Path:
    """The folder of the certificate. The default is a private one.

    Not in /tmp, unlike Cluster API's own: every user of the machine can write there.
    """
    config = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/"), ".config")
    return chosen.cert_dir or Path(config, "capelin", name)


def host_of(chosen: Options) -> str:
    """The address on which to serve the hooks.

    Raises:
        AnonymousClientsError: Without a client CA, it has to be a loopback address.
    """
    if chosen.client_ca is not None or chosen.allow_any_client:
        return chosen.host
    if chosen.host in ("", "localhost"):
        return "127.0.0.1"
    if not is_loopback(chosen.host):
        raise AnonymousClientsError(
            f"refusing to listen on {chosen.host} without --client-ca: everyone who can reach the"
            " extension could call its hooks. Set --client-ca to the CA of Cluster API's client"
            " certificate, or --allow-any-client"
        )
    return chosen.host


def serve(extension: Extension, options: Options | None = None) -> NoReturn:
    """Serve an extension until SIGTERM, with options from the command line or environment."""
    sys.exit(run(extension, options or read_options(Options, extension.name)))


def run(extension: Extension, chosen: Options) -> int:
    """Serve an extension and return the exit code."""
    name, environment = extension.name, os.environ
    logging.basicConfig(
        format="%(asctime)s %(levelname)-7s %(message)s",
        level=chosen.log_level.upper(),
        stream=sys.stderr,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    tracing.configure(name, environment)
    try:
        extension.check()
        certificates = Certificates(cert_dir_of(chosen, name, environment), chosen.client_ca)
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
