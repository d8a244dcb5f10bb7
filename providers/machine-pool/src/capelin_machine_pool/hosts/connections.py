"""Connections to hosts, with credentials from Secrets, directly or through a bastion."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from capelin.api.core import Secret
from capelin.client import Client, Destinations
from capelin.provider import Blocked

from capelin_machine_pool.bootstrap import Transport
from capelin_machine_pool.bootstrap.ssh import InvalidKeyError, SshHost, connect_ssh
from capelin_machine_pool.hosts.api import PRIVATE_KEY, Bastion, CapelinHost, HostSpec
from capelin_machine_pool.reasons import Reason


@dataclass(frozen=True, slots=True)
class SshTarget:
    """The SSH server of a host, and the bastion before it."""

    host: SshHost
    bastion: SshHost | None = None

    def connect(self, destinations: Destinations | None) -> AbstractAsyncContextManager[Transport]:
        """Connect to the host.

        Args:
            destinations: Addresses that are allowed. None allows all.
        """
        return connect_ssh(self.host, destinations, self.bastion)


async def ssh_target(
    client: Client, host: CapelinHost, host_keys: Sequence[str] | None = None
) -> SshTarget:
    """The SSH server of a host with its credentials.

    Args:
        client: The management cluster.
        host: The host.
        host_keys: Its keys, if they are not those of the spec.

    Raises:
        Blocked: A Secret is missing, or a key is unreadable.
    """
    spec, namespace = host.spec, host.namespace or ""
    keys = spec.host_keys if host_keys is None else host_keys
    bastion = None
    if spec.bastion is not None:
        bastion = await _ssh_host(client, namespace, spec.bastion, spec.bastion.host_keys)
    return SshTarget(await _ssh_host(client, namespace, spec, keys), bastion)


async def _ssh_host(
    client: Client, namespace: str, spec: HostSpec | Bastion, host_keys: Sequence[str]
) -> SshHost:
    name = spec.credentials.secret_name
    secret = await client.find(Secret, name, namespace)
    key = None if secret is None else secret.data.get(PRIVATE_KEY)
    if key is None:
        problem = "does not exist" if secret is None else f"has no data under {PRIVATE_KEY}"
        hint = f"store a private key there: kubectl create secret generic {name}"
        raise Blocked(
            Reason.INVALID_CREDENTIALS,
            f"the Secret {name} {problem}",
            f"{hint} --from-file={PRIVATE_KEY}=FILE",
        )
    try:
        return SshHost(
            address=spec.address,
            port=spec.port,
            user=spec.user,
            private_key=key.decode(errors="replace"),
            host_keys=tuple(host_keys),
            host_cas=tuple(spec.host_authorities),
        )
    except InvalidKeyError as error:
        hint = f"correct the Secret {name} or the keys of {spec.address}"
        raise Blocked(Reason.INVALID_CREDENTIALS, str(error), hint) from None
