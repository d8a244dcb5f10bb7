"""The secrets of a Cluster: their names, content and owners.

The control plane is the controller of each secret that a provider creates. It is not the controller
of a user's secret, which providers read and never change or delete.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal, cast

from capelin.api import BaseObject, ObjectMeta
from capelin.api.core import Secret
from capelin.client import Config, ConfigError
from capelin.contract.labels import CLUSTER_NAME_LABEL, SECRET_TYPE
from capelin.contract.references import reference_to
from capelin.pki import KeyPair, ServiceAccountKeys, reissue_reason

SecretPurpose = Literal[
    "kubeconfig", "ca", "etcd", "proxy", "sa", "apiserver-etcd-client", "encryption"
]
"""The purpose of a secret, which is the suffix of its name.

`ca` is the cluster's CA, `etcd` and `proxy` are those of etcd and of the front proxy, `sa` has the
keys that sign service account tokens, `apiserver-etcd-client` has the client certificate for an
external etcd, and `encryption` has the keys of encryption at rest.
"""

KUBECONFIG_KEY = "value"
KEYRING_KEY = "keyring"
CERTIFICATE_KEY = "tls.crt"
PRIVATE_KEY_KEY = "tls.key"
BOOTSTRAP_DATA_KEY = "value"


def secret_name(cluster: str, purpose: SecretPurpose) -> str:
    """The name of a Cluster's secret."""
    return f"{cluster}-{purpose}"


def kubeconfig_secret(kubeconfig: bytes, *, cluster: str, owner: BaseObject) -> Secret:
    """The secret through which core, and administrators, reach the workload cluster."""
    return _secret(cluster, "kubeconfig", {KUBECONFIG_KEY: kubeconfig}, owner)


def kubeconfig_reason(
    data: bytes | None,
    server: str,
    ca_pem: bytes,
    *,
    signer_pem: bytes,
    common_name: str,
    organizations: Iterable[str] = (),
    now: datetime,
    share: float = 0.5,
) -> str | None:
    """The reason to renew a kubeconfig, as a clause after "because", or `None` if it is good.

    `ca_pem` is the CA to trust, `signer_pem` the CA that signs its client certificate.
    """
    if data is None:
        return "there is none yet"
    try:
        config = Config.from_secret(data)
    except ConfigError:
        return "the present one cannot be read"
    certificate = config.user.certificate
    differences = {
        "its user impersonates another": config.user.impersonate is not None,
        "its server is another": config.server.address != server,
        "it trusts other CAs": config.server.ca != ca_pem,
        "it has no client certificate": certificate is None,
    }
    if difference := next((reason for reason, applies in differences.items() if applies), None):
        return difference
    # `from_secret` accepts no certificate in a file.
    reason = reissue_reason(
        cast("bytes", certificate),
        signer_pem,
        common_name=common_name,
        organizations=organizations,
        usages=("client",),
        now=now,
        share=share,
    )
    return reason and f"with its client certificate, {reason}"


def certificate_secret(
    purpose: SecretPurpose, pair: KeyPair, *, cluster: str, owner: BaseObject
) -> Secret:
    """A secret that holds a certificate and its key."""
    data = {CERTIFICATE_KEY: pair.certificate_pem, PRIVATE_KEY_KEY: pair.private_key_pem}
    return _secret(cluster, purpose, data, owner)


def service_account_secret(keys: ServiceAccountKeys, *, cluster: str, owner: BaseObject) -> Secret:
    """The secret that holds the service account keys, the public one in the certificate's place."""
    data = {CERTIFICATE_KEY: keys.public_key_pem, PRIVATE_KEY_KEY: keys.private_key_pem}
    return _secret(cluster, "sa", data, owner)


def encryption_secret(keyring: bytes, *, cluster: str, owner: BaseObject) -> Secret:
    """The secret that holds the keys of encryption at rest."""
    return _secret(cluster, "encryption", {KEYRING_KEY: keyring}, owner)


def secret_problem(secret: Secret, purpose: SecretPurpose, *, cluster: str) -> str | None:
    """Why a Cluster cannot use a secret, or `None` if it can.

    Args:
        secret: The secret, perhaps from a user.
        purpose: Its purpose.
        cluster: The Cluster's name.
    """
    if secret.metadata.labels.get(CLUSTER_NAME_LABEL) != cluster:
        return (
            f"Secret {secret.name} lacks the label {CLUSTER_NAME_LABEL}={cluster}, and Cluster API "
            "ignores secrets without it. Run kubectl label --overwrite secret "
            f"{secret.name} {CLUSTER_NAME_LABEL}={cluster}"
        )
    if purpose == "kubeconfig":
        needed = [KUBECONFIG_KEY]
    elif purpose == "sa":
        needed = [PRIVATE_KEY_KEY]
    else:
        needed = [CERTIFICATE_KEY, PRIVATE_KEY_KEY]
    missing = [key for key in needed if not secret.data.get(key)]
    if missing:
        return (
            f"Secret {secret.name} has no data under {' and '.join(missing)}. "
            "Add it, or delete the secret so that Capelin creates it again"
        )
    return None


def _secret(
    cluster: str, purpose: SecretPurpose, data: dict[str, bytes], owner: BaseObject
) -> Secret:
    return Secret(
        metadata=ObjectMeta(
            name=secret_name(cluster, purpose),
            namespace=owner.namespace,
            labels={CLUSTER_NAME_LABEL: cluster},
            owner_references=[reference_to(owner, controller=True)],
        ),
        type=SECRET_TYPE,
        data=data,
    )
