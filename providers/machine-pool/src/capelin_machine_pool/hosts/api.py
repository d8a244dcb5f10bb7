"""API types of hosts: existing machines that the provider reaches over SSH."""

from typing import Annotated, Final, Literal

from annotated_types import MaxLen, MinLen
from capelin.api import (
    Column,
    Conditions,
    Definition,
    DNSLabel,
    DNSSubdomain,
    Host,
    Int64,
    Model,
    Object,
    Port,
    Time,
    atomic,
    kind,
    map_list,
    rule,
)
from capelin.provider import CONTRACTS, MachineAddress, ProviderID
from pydantic import Field

from capelin_machine_pool.api import (
    GROUP,
    VERSION,
    Capacity,
    Commands,
    NodeInfo,
    Profile,
    Taint,
)

CLEAN_AGAIN_ANNOTATION: Final = "capelin.cluster.x-k8s.io/clean-again"
"""Requests another clean-up of a broken host, after which it can be used again.

For a claim that its machine did not release, the value has to be the claim's identifier.
"""
RENEW_BASELINE_ANNOTATION: Final = "capelin.cluster.x-k8s.io/renew-baseline"
"""Accepts the present state of a host without a machine as that from before its first use."""
BASELINE_ANNOTATION: Final = "capelin.cluster.x-k8s.io/baseline"
"""Digest of the state of a host before its first use. Written by the provider."""
POWER_CYCLE_ANNOTATION: Final = "capelin.cluster.x-k8s.io/power-cycle"
"""Requests a power cycle of a host, whatever its phase is."""
MOVE_LABEL: Final = "clusterctl.cluster.x-k8s.io/move"
"""Makes `clusterctl move` take all objects of a kind along."""
PRIVATE_KEY: Final = "ssh-privatekey"
"""The key of the private key in a Secret of the type `kubernetes.io/ssh-auth`."""

Phase = Literal[
    "Unavailable",
    "Free",
    "Claimed",
    "Bootstrapping",
    "Ready",
    "Updating",
    "Cleaning",
    "Broken",
]
KubernetesVersion = Annotated[
    str,
    MaxLen(64),
    Field(pattern=r"^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$"),
]
PublicKey = Annotated[
    str,
    MinLen(32),
    MaxLen(2048),
    Field(pattern=r"^(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)) [A-Za-z0-9+/]+=*( .*)?$"),
]
PublicKeys = Annotated[list[PublicKey], MaxLen(8), atomic()]
UserName = Annotated[str, MinLen(1), MaxLen(32), Field(pattern=r"^[a-z_][a-z0-9_-]*$")]
ShortText = Annotated[str, MaxLen(256)]

_HAS_KEYS: Final = (
    "(has(self.hostKeys) && size(self.hostKeys) > 0)"
    " || (has(self.hostAuthorities) && size(self.hostAuthorities) > 0)"
)


class HostCredentials(Model):
    """How the provider logs in to a host."""

    secret_name: DNSSubdomain
    """Name of a Secret in the host's namespace. It has a private key without a passphrase under
    `ssh-privatekey`, as Secrets of the type `kubernetes.io/ssh-auth`."""


class PowerCredentials(Model):
    """How the provider logs in to a Redfish service."""

    secret_name: DNSSubdomain
    """Name of a Secret in the host's namespace. It has `username` and `password`, as Secrets of the
    type `kubernetes.io/basic-auth`."""


class Bastion(Model):
    """An SSH server that forwards connections to hosts in its network."""

    address: Host
    """DNS name or IP address of the bastion."""
    port: Port = 22
    """TCP port of its SSH server."""
    user: UserName = "root"
    """User that logs in. It needs no other permission than to forward TCP connections."""
    credentials: HostCredentials
    """How the provider logs in."""
    host_keys: PublicKeys = []
    """Public keys of the bastion, as `ssh-keyscan` prints them."""
    host_authorities: PublicKeys = []
    """Public keys of CAs. One of them has to have signed the bastion's key for its address."""

    rules = (
        rule(
            _HAS_KEYS,
            "set hostKeys or hostAuthorities: a bastion is always verified",
        ),
    )


class Redfish(Model):
    """The Redfish service of a host, in its management controller."""

    address: Annotated[
        str,
        MinLen(9),
        MaxLen(1024),
        Field(pattern=r"^https://[!-\"$-.0->A-~]+/[!-\"$->@-~]+$"),
    ]
    """URL of the host's ComputerSystem: `https://10.0.1.7/redfish/v1/Systems/1`."""
    credentials: PowerCredentials
    """How the provider logs in."""
    ca_bundle: Annotated[str, MaxLen(32768)] | None = None
    """Certificates of the CAs to trust, in PEM. The CAs of the system, if unset."""


class Power(Model):
    """How the provider power cycles a host."""

    method: Literal["Redfish", "Command", "SSH"]
    """`Redfish`: the host's management controller restarts it. `Command`: a program of the
    provider's administrator does. `SSH`: the host reboots itself, if it answers."""
    redfish: Redfish | None = None
    """The service of the method `Redfish`."""
    command: DNSLabel | None = None
    """Name of a program for the host's namespace in the provider's folder `--power-commands`, for
    the method `Command`."""

    rules = (
        rule(
            "(self.method == 'Redfish') == has(self.redfish)",
            "the method Redfish needs redfish, and other methods do not use it",
            field_path=".redfish",
        ),
        rule(
            "(self.method == 'Command') == has(self.command)",
            "the method Command needs command, and other methods do not use it",
            field_path=".command",
        ),
    )


class HostClaim(Model):
    """The machine that a host belongs to, with all that a clean-up needs."""

    id: Annotated[str, MinLen(1), MaxLen(64)]
    """Identifier of the claim. The marker on the host has it."""
    machine: DNSSubdomain
    """Name of the CapelinMachine."""
    cluster: DNSSubdomain
    """Name of the Cluster."""
    pool: Annotated[str, MaxLen(253)] | None = None
    """Name of the MachinePool, if the machine is part of one."""
    provider_id: ProviderID
    """Provider ID of the machine's Node."""
    bootstrap_secret: DNSSubdomain
    """Name of the Secret with the bootstrap data."""
    clean_commands: Commands = []
    """Shell commands of the machine for the clean-up."""
    version: KubernetesVersion | None = None
    """Kubernetes version for which the machine claimed the host."""
    update_version: KubernetesVersion | None = None
    """Kubernetes version to which the host is updated in place. The machine sets it after it has
    drained the Node."""
    profile: Profile = "Image"
    """How the host gets its container runtime, kubelet and kubeadm."""
    install_commands: Commands = []
    """Shell commands of the machine that install them."""
    released_at: Time | None = None
    """When the machine released the host. The clean-up then begins."""


class HostSpec(Model):
    """Desired state of a host."""

    address: Host
    """DNS name or IP address of its SSH server."""
    port: Port = 22
    """TCP port of its SSH server."""
    user: UserName = "root"
    """User that logs in. A user other than root needs `sudo` without a password."""
    credentials: HostCredentials
    """How the provider logs in."""
    host_keys: PublicKeys = []
    """Public keys of the host, as `ssh-keyscan` prints them: `ssh-ed25519 AAAA...`."""
    host_authorities: PublicKeys = []
    """Public keys of CAs. One of them has to have signed the host's key for its address."""
    trust_on_first_use: bool = False
    """Whether the provider trusts the key that the host shows at the first contact. It then writes
    the key to `hostKeys`."""
    bastion: Bastion | None = None
    """SSH server through which the provider connects to the host. The bastion resolves the
    address of the host."""
    power: Power | None = None
    """How the provider power cycles the host, once after each release, if it does not answer or is
    not clean."""
    failure_domain: Annotated[str, MinLen(1), MaxLen(256)] | None = None
    """Failure domain that the host is in."""
    taints: Annotated[list[Taint], MaxLen(32), map_list("key", "effect")] = []
    """Taints of the host's Node, for example of a host with a GPU. The provider adds them with the
    provider ID. A Node whose bootstrap data set the provider ID needs kubeadm's `taints`."""
    maintenance: bool = False
    """Whether no machine may claim the host. A machine that already has it keeps it."""
    maintenance_after_use: bool = False
    """Whether a machine that releases the host sets `maintenance`: until a person has installed the
    host again, root of the former cluster may still control it."""
    claim: HostClaim | None = None
    """The machine that the host belongs to. Written by the provider."""

    rules = (
        rule(
            f"{_HAS_KEYS} || (has(self.trustOnFirstUse) && self.trustOnFirstUse)",
            "set hostKeys or hostAuthorities, or trustOnFirstUse: a host is always verified",
        ),
        rule(
            f"!has(self.bastion) || {_HAS_KEYS}",
            "set hostKeys or hostAuthorities: trustOnFirstUse does not work behind a bastion",
            field_path=".bastion",
        ),
        rule(
            "!has(oldSelf.claim) || (self.address == oldSelf.address"
            " && (has(self.port) ? self.port : 22) == (has(oldSelf.port) ? oldSelf.port : 22))",
            "a machine has the host: its address and port cannot change until it is clean",
            field_path=".address",
        ),
    )


class HostStatus(Model):
    """Observed state of a host."""

    phase: Phase | None = None
    """The state of the host. Only a Free host can be claimed. An Unavailable one becomes Free by
    itself, and a Broken one only after the annotation `capelin.cluster.x-k8s.io/clean-again`."""
    claim: Annotated[str, MaxLen(64)] | None = None
    """Identifier of the claim that the phase is about."""
    conditions: Conditions = []
    """Observations of the host's state. `Ready` sums them up."""
    observed_generation: Int64 | None = None
    """Generation of the spec that this status describes."""
    host_name: ShortText | None = None
    """Name that the host gives itself."""
    addresses: Annotated[list[MachineAddress], MaxLen(32), atomic()] = []
    """Addresses of the host."""
    capacity: Capacity = {}
    """Resources of the host, such as `4` of `cpu` and `16Gi` of `memory`."""
    node_info: NodeInfo | None = None
    """Platform of the host."""
    operating_system_image: ShortText | None = None
    """Name and version of its operating system."""
    kernel_version: ShortText | None = None
    """Version of its kernel."""
    kubelet_version: ShortText | None = None
    """Version of the installed kubelet."""
    updated_version: ShortText | None = None
    """Kubernetes version of the last update in place for the present claim."""
    last_contact_at: Time | None = None
    """When the host last answered. Visits that follow within ten minutes do not change it."""
    power_cycled_at: Time | None = None
    """When the provider last power cycled the host, or tried to."""


COLUMNS: Final = (
    Column("Phase", ".status.phase"),
    Column("Machine", ".spec.claim.machine"),
    Column("Address", ".spec.address"),
    Column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
    Column("Age", ".metadata.creationTimestamp", "date"),
)


@kind(
    group=GROUP,
    version=VERSION,
    definition=Definition(
        contracts=CONTRACTS,
        columns=COLUMNS,
        short_names=("capelinho",),
        categories=("cluster-api",),
        labels={MOVE_LABEL: ""},
    ),
)
class CapelinHost(Object[HostSpec, HostStatus]):
    """An existing machine that becomes a node of one cluster after another."""
