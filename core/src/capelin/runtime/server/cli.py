"""The command line of an extension's program."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from capelin.runtime.dispatch import handler_runners
from capelin.runtime.extension import Extension, InvalidExtensionError
from capelin.runtime.server.metrics import Metrics
from capelin.runtime.server.processes import PortTakenError, Processes, listen
from capelin.runtime.server.tls import CertificateError, Certificates
from capelin.runtime.server.worker import Worker

_log = logging.getLogger(__name__)

_CERT_DIR = Path("/tmp/k8s-webhook-server/serving-certs")  # noqa: S108 - as all of Cluster API


@dataclass(frozen=True, slots=True)
class Options:
    """How a server is to run."""

    host: str
    port: int
    probes_port: int
    cert_dir: Path
    client_ca: Path | None
    workers: int
    drain_seconds: float
    log_level: str


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

    option("host", "", "address to listen on, empty for all", str)
    option("port", 9443, "port for Cluster API, in HTTPS", _port)
    option("probes-port", 9440, "port for /healthz, /readyz and /metrics, in HTTP", _port)
    option("cert-dir", _CERT_DIR, "folder of tls.crt and tls.key", Path)
    option(
        "client-ca",
        None,
        "file with the CA of the clients, which then must show certificates",
        Path,
    )
    option("workers", 1, "processes that answer", _positive)
    option(
        "drain-seconds", 5, "how long to go on after SIGTERM, until nobody calls any more", _seconds
    )
    option("log-level", "info", "debug, info, warning or error", _level)
    return Options(**vars(parser.parse_args(arguments)))


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
        hooks = listen(chosen.host, chosen.port, chosen.workers)
        probes = listen(chosen.host, chosen.probes_port, chosen.workers)
    except (InvalidExtensionError, CertificateError, PortTakenError) as problem:
        _log.error("%s", problem)
        return 1
    metrics = Metrics([one.handler for one in handler_runners(extension).values()], chosen.workers)

    def work(index: int) -> None:
        for mine in (hooks, probes):
            for other in mine[:index] + mine[index + 1 :]:
                other.close()
        Worker(
            extension=extension,
            metrics=metrics,
            number=index,
            hooks=hooks[index],
            probes=probes[index],
            certificates=certificates,
            drain_seconds=chosen.drain_seconds,
            supervised=chosen.workers > 1,
        ).run()

    _log.info(
        "serving %s handlers on https port %s, probes on http port %s",
        len(extension.handlers),
        hooks[0].getsockname()[1],
        probes[0].getsockname()[1],
    )
    if chosen.workers == 1:
        work(0)
        return 0
    return Processes(work, chosen.workers).supervise()


def _port(text: str) -> int:
    return _whole(text, 0, 65535)


def _positive(text: str) -> int:
    return _whole(text, 1, 1024)


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
