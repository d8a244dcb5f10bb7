"""Certificate authorities, leaf certificates and kubeconfigs, and when to renew them."""

from capelin.pki.certificates import (
    CA_VALIDITY,
    CLOCK_SKEW,
    LEAF_VALIDITY,
    Algorithm,
    KeyPair,
    ServiceAccountKeys,
    Usage,
    issue,
    new_ca,
    new_service_account_keys,
)
from capelin.pki.kubeconfig import (
    KubeconfigAccess,
    KubeconfigError,
    kubeconfig_reason,
    new_kubeconfig,
    read_kubeconfig,
)
from capelin.pki.renewal import Leaf, Validity, reissue_reason, validity_of
from capelin.pki.user_certificates import (
    InvalidPemError,
    PemProblem,
    read_ca,
    read_ca_certificate,
    read_service_account_keys,
)

__all__ = [
    "CA_VALIDITY",
    "CLOCK_SKEW",
    "LEAF_VALIDITY",
    "Algorithm",
    "InvalidPemError",
    "KeyPair",
    "KubeconfigAccess",
    "KubeconfigError",
    "Leaf",
    "PemProblem",
    "ServiceAccountKeys",
    "Usage",
    "Validity",
    "issue",
    "kubeconfig_reason",
    "new_ca",
    "new_kubeconfig",
    "new_service_account_keys",
    "read_ca",
    "read_ca_certificate",
    "read_kubeconfig",
    "read_service_account_keys",
    "reissue_reason",
    "validity_of",
]
