"""A manager's options: each a flag, an environment variable and a line of --help at once.

The engine has a hundred lines. pydantic-settings would need a type for each reader, an alias for
each variable and a help formatter, and its errors name fields, not flags and variables.
"""

import argparse
import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

ValueT = TypeVar("ValueT")
OptionsT = TypeVar("OptionsT", bound="Options")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")


class OptionsError(ValueError):
    """Options that cannot be, or cannot be together. Says all that is wrong, a line each."""


class Address(NamedTuple):
    """Where to listen. An empty host is every address of the machine."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def seconds(text: str) -> float:
    """A time as Kubernetes' flags take it: `10h`, `1m30s`, `250ms`; a bare number is seconds."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if not re.fullmatch(r"(\d+(\.\d+)?(ms|s|m|h))+", text):
        raise ValueError(f'"{text}" is not a time; write 10h, 1m30s or 250ms')
    parts: list[tuple[str, str]] = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", text)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def address(text: str) -> Address | None:
    """An address as `host:port` or `:port`; `0` is none at all."""
    if text == "0":
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f'"{text}" is not an address; write :8080, 127.0.0.1:8080, or 0 for none')
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(
            f'"{text}" is not a name; use lowercase letters, digits and "-", at most 63'
        )
    return text


def label_value(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise ValueError(
            f'"{text}" is not a label\'s value; use letters, digits, "-", "_" and ".", at most 63'
        )
    return text


def whole_number(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise ValueError(f'"{text}" is not a whole number')
    return int(text)


def truth(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(f'"{text}" is neither true nor false')
    return text.lower() == "true"


def one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f'"{text}" is none of {", ".join(choices)}')
        return text

    return read


@dataclass(frozen=True, slots=True)
class _Flag:
    help: str
    read: Callable[[str], Any]
    shown: str
    short: str | None


def flag(
    default: ValueT,
    read: Callable[[str], ValueT],
    help: str,  # noqa: A002 - what argparse calls it
    *,
    shown: str | None = None,
    short: str | None = None,
) -> ValueT:
    """A field of options: its default, how to read it from text, and its line of --help.

    `shown` is the default as a user would write it. A flag with a `short` form, as -v, counts.
    """
    flag = _Flag(help, read, shown if shown is not None else str(default), short)
    return dataclasses.field(default=default, metadata={"flag": flag})


_METRICS = Address("127.0.0.1", 8080)
_HEALTH = Address("127.0.0.1", 9440)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What every manager can be told. Providers with more to ask for inherit from this."""

    namespace: str | None = flag(None, name, "Watch this namespace only.", shown="every namespace")
    watch_filter: str | None = flag(
        None,
        label_value,
        "Reconcile only what has this value in its label cluster.x-k8s.io/watch-filter.",
        shown="whatever it has",
    )
    kubeconfig: Path | None = flag(
        None,
        Path,
        "The kubeconfig of the management cluster.",
        shown="$KUBECONFIG, else in-cluster, else ~/.kube/config",
    )
    leader_elect: bool = flag(
        False,  # noqa: FBT003 - the flag's default
        truth,
        "Work only while holding a lease, so that one of several replicas works at a time.",
        shown="false",
    )
    leader_elect_namespace: str | None = flag(
        None, name, "The namespace of the lease.", shown="the one that the kubeconfig names"
    )
    leader_elect_lease_duration: float = flag(
        15.0, seconds, "How long others wait for a leader that is silent.", shown="15s"
    )
    leader_elect_renew_deadline: float = flag(
        10.0, seconds, "How long a leader tries to renew before it gives up.", shown="10s"
    )
    leader_elect_retry_period: float = flag(
        2.0, seconds, "How long to wait between tries to get or renew the lease.", shown="2s"
    )
    concurrency: int = flag(
        10,
        whole_number,
        "How many objects of a kind are reconciled at the same time. Machines of one cluster take "
        "at most a third of these workers.",
    )
    sync_period: float = flag(
        36_000.0, seconds, "How often to look at an object that did not change.", shown="10h"
    )
    metrics_address: Address | None = flag(
        _METRICS,
        address,
        "Where /metrics listens; 0 for nowhere. On other than loopback addresses it needs TLS, and "
        "a token of a user who may get /metrics.",
        shown="127.0.0.1:8080",
    )
    insecure_diagnostics: bool = flag(
        False,  # noqa: FBT003 - the flag's default
        truth,
        "Serve /metrics on any address in HTTP and without a token.",
        shown="false",
    )
    health_address: Address | None = flag(
        _HEALTH,
        address,
        "Where /healthz and /readyz listen; 0 for nowhere.",
        shown="127.0.0.1:9440",
    )
    grace_period: float = flag(
        20.0, seconds, "How long running reconciles may take to end on SIGTERM.", shown="20s"
    )
    log_format: Literal["text", "json"] = flag(
        "text",
        cast("Callable[[str], Literal['text', 'json']]", one_of("text", "json")),
        "How log lines look: text or json.",
    )
    verbosity: int = flag(
        0, whole_number, "Log more; twice for the libraries' own lines too.", short="-v"
    )

    def __post_init__(self) -> None:
        if problems := self.problems():
            raise OptionsError("\n".join(problems))

    def problems(self) -> list[str]:
        """What is wrong with these options together, a sentence each."""
        found: list[str] = []
        if self.concurrency < 1:
            found.append("--concurrency has to be at least 1")
        if self.sync_period < 1:
            found.append("--sync-period has to be at least 1s")
        if self.leader_elect_lease_duration <= self.leader_elect_renew_deadline:
            found.append(
                "--leader-elect-lease-duration has to be longer than --leader-elect-renew-deadline"
            )
        if self.leader_elect_retry_period <= 0:
            found.append("--leader-elect-retry-period has to be longer than 0s")
        # The jitter of a retry, as in client-go.
        elif self.leader_elect_renew_deadline <= 1.2 * self.leader_elect_retry_period:
            found.append(
                "--leader-elect-renew-deadline has to be longer than 1.2 times "
                "--leader-elect-retry-period"
            )
        return found


def parse(
    options: type[OptionsT],
    program: str,
    description: str,
    arguments: Sequence[str],
    environ: Mapping[str, str] | None = None,
) -> OptionsT:
    """Options from the command line, else from `CAPELIN_<FLAG>`, else as they are by default.

    Raises:
        OptionsError: one or more of them make no sense.
    """
    fields = dataclasses.fields(options)
    flags = {field.name: cast("_Flag", field.metadata["flag"]) for field in fields}
    # `--namespace=` is how Cluster API's providers are told to watch every namespace.
    optional = {field.name for field in fields if field.default is None}
    parser = argparse.ArgumentParser(
        program,
        description=description,
        argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for field, flag in flags.items():
        _add(parser, field, flag)
    environ = os.environ if environ is None else environ
    given = cast("dict[str, str | int]", vars(parser.parse_args(arguments)))
    values: dict[str, Any] = {}
    problems: list[str] = []
    for field, flag in flags.items():
        source, text = _source(field, given, environ)
        if text is None or (not text and field in optional):
            continue
        try:
            values[field] = flag.read(text)
        except ValueError as error:
            problems.append(f"{source}: {error}")
    if problems:
        raise OptionsError("\n".join(problems))
    return options(**values)


def _source(
    field: str, given: Mapping[str, str | int], environ: Mapping[str, str]
) -> tuple[str, str | None]:
    if field in given:
        return _long(field), str(given[field])
    variable = _variable(field)
    return variable, environ.get(variable) or None


def _add(parser: argparse.ArgumentParser, field: str, flag: _Flag) -> None:
    explained = f"{flag.help} Default: {flag.shown}. [{_variable(field)}]".replace("%", "%%")
    if flag.short is not None:
        parser.add_argument(flag.short, _long(field), action="count", dest=field, help=explained)
    elif flag.read is truth:
        # Both `--leader-elect` and `--leader-elect=true`, as manifests have it.
        parser.add_argument(
            _long(field), nargs="?", const="true", metavar="true|false", dest=field, help=explained
        )
    else:
        parser.add_argument(
            _long(field), metavar=field.rpartition("_")[2].upper(), dest=field, help=explained
        )


def _long(field: str) -> str:
    return "--" + field.replace("_", "-")


def _variable(field: str) -> str:
    return "CAPELIN_" + field.upper()
