"""Certificate authorities, leaf certificates, kubeconfigs, and when each is made anew."""

from capelin.pki.certificates import (
    CA_VALIDITY,
    CLOCK_SKEW,
    LEAF_VALIDITY,
    KeyPair,
    Usage,
    issue,
    new_ca,
)
from capelin.pki.given import (
    Refusal,
    RefusedError,
    read_ca,
    read_ca_certificate,
    read_service_account_keys,
)
from capelin.pki.keys import Algorithm, ServiceAccountKeys, new_service_account_keys
from capelin.pki.kubeconfig import (
    Access,
    KubeconfigError,
    client_certificate_of,
    kubeconfig,
    kubeconfig_reason,
    read_kubeconfig,
)
from capelin.pki.leaves import Leaf
from capelin.pki.renewal import Validity, reissue_reason, renewal_at, renewal_due, validity_of
from capelin.pki.trust import CaChange, bundle, next_ca_change, signer, trusted

__all__ = [
    "CA_VALIDITY",
    "CLOCK_SKEW",
    "LEAF_VALIDITY",
    "Access",
    "Algorithm",
    "CaChange",
    "KeyPair",
    "KubeconfigError",
    "Leaf",
    "Refusal",
    "RefusedError",
    "ServiceAccountKeys",
    "Usage",
    "Validity",
    "bundle",
    "client_certificate_of",
    "issue",
    "kubeconfig",
    "kubeconfig_reason",
    "new_ca",
    "new_service_account_keys",
    "next_ca_change",
    "read_ca",
    "read_ca_certificate",
    "read_kubeconfig",
    "read_service_account_keys",
    "reissue_reason",
    "renewal_at",
    "renewal_due",
    "signer",
    "trusted",
    "validity_of",
]
