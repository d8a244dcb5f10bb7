"""A manager's options."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar, cast

from capelin.flags import OptionsError, flag, one_of, seconds, truth, whole_number
from capelin.hosts import is_loopback

OptionsT = TypeVar("OptionsT", bound="Options")

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")


class Address(NamedTuple):
    """An address to listen on. An empty host means every address of the machine."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address | None:
    """An address as `host:port` or `:port`. `0` means none."""
    if text == "0":
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f'"{text}" is not an address: write :8080, 127.0.0.1:8080, or 0 for none')
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(
            f'"{text}" is not a name: use lowercase letters, digits and "-", at most 63'
        )
    return text


def label_value(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise ValueError(
            f'"{text}" is not a label\'s value: use letters, digits, "-", "_" and ".", at most 63'
        )
    return text


_METRICS = Address("127.0.0.1", 8080)
_HEALTH = Address("127.0.0.1", 9440)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of every manager. Providers with additional options inherit from this."""

    namespace: str | None = flag(None, name, "Watch this namespace only.", shown="every namespace")
    watch_filter: str | None = flag(
        None,
        label_value,
        "Reconcile only objects with this value in their label cluster.x-k8s.io/watch-filter.",
        shown="no filter",
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
        "The address of /metrics, or 0 for none. Other than loopback addresses require TLS and the "
        "token of a user who may get /metrics.",
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
        "The address of /healthz and /readyz, or 0 for none.",
        shown="127.0.0.1:9440",
    )
    webhook_address: Address | None = flag(
        None,
        address,
        "The address of the conversion webhook, in HTTPS, or 0 for none.",
        shown="none",
    )
    cert_dir: Path | None = flag(
        None,
        Path,
        "The folder of tls.crt and tls.key for webhooks. They may be replaced at any time.",
        shown="none",
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
        0, whole_number, "Log more. Twice: log the libraries' own lines too.", short="-v"
    )

    def __post_init__(self) -> None:
        if problems := self.problems():
            raise OptionsError("\n".join(problems))

    def problems(self) -> list[str]:
        """The problems of these options together, a sentence each."""
        found: list[str] = []
        if self.concurrency < 1:
            found.append("--concurrency has to be at least 1")
        if self.sync_period < 1:
            found.append("--sync-period has to be at least 1s")
        if self.webhook_address is not None and self.cert_dir is None:
            found.append("--webhook-address needs --cert-dir")
        if self.leader_elect_lease_duration <= self.leader_elect_renew_deadline:
            found.append(
                "--leader-elect-lease-duration has to be longer than --leader-elect-renew-deadline"
            )
        if self.leader_elect_retry_period <= 0:
            found.append("--leader-elect-retry-period has to be longer than 0s")
        # The jitter of a retry, like in client-go.
        elif self.leader_elect_renew_deadline <= 1.2 * self.leader_elect_retry_period:
            found.append(
                "--leader-elect-renew-deadline has to be longer than 1.2 times "
                "--leader-elect-retry-period"
            )
        return found
