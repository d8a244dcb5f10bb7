"""Hosts and machines for tests."""

from datetime import UTC, datetime
from typing import Any

from capelin.api import ObjectMeta
from capelin_machine_pool.api import CapelinMachine, HostReference, MachineSpec
from capelin_machine_pool.hosts.api import (
    CapelinHost,
    HostClaim,
    HostCredentials,
    HostSpec,
    HostStatus,
    Phase,
)

NAMESPACE = "team"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHRlc3RrZXl0ZXN0a2V5dGVzdGtleXRlc3RrZXl0ZXN0"


def a_claim(machine: str = "one", *, pool: str | None = None, **changes: Any) -> HostClaim:
    values: dict[str, Any] = {
        "id": f"uid-{machine}",
        "machine": machine,
        "cluster": "demo",
        "pool": pool,
        "provider_id": f"capelin:///{NAMESPACE}/demo/{machine}",
        "bootstrap_secret": "data",
    }
    return HostClaim(**{**values, **changes})


def a_host(
    name: str = "host-1",
    *,
    phase: Phase | None = "Free",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    domain: str | None = None,
    claim: HostClaim | None = None,
    **spec: Any,
) -> CapelinHost:
    values: dict[str, Any] = {
        "address": "10.0.0.7",
        "credentials": HostCredentials(secret_name="ssh"),
        "host_keys": [KEY],
        "failure_domain": domain,
        "claim": claim,
        **spec,
    }
    host = CapelinHost.of(name, NAMESPACE, spec=HostSpec(**values))
    host.metadata.labels = labels or {}
    host.metadata.annotations = annotations or {}
    host.metadata.generation = 1
    if phase is not None:
        claim_id = None if claim is None else claim.id
        host.status = HostStatus(phase=phase, claim=claim_id, observed_generation=1)
    return host


def a_machine(
    name: str = "one", *, host: HostReference | None = None, **metadata: Any
) -> CapelinMachine:
    return CapelinMachine(
        metadata=ObjectMeta(name=name, namespace=NAMESPACE, **metadata),
        spec=MachineSpec(backend="Hosts", host=host, version="v1.34.4"),
    )
