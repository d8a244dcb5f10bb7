"""Certificate authorities and leaf certificates, and when to renew them."""

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
    new_request,
    new_service_account_keys,
)
from capelin.pki.renewal import Leaf, Validity, reissue_reason, validity_of
from capelin.pki.user_certificates import (
    InvalidPemError,
    PemProblem,
    read_ca,
    read_service_account_keys,
)

__all__ = [
    "CA_VALIDITY",
    "CLOCK_SKEW",
    "LEAF_VALIDITY",
    "Algorithm",
    "InvalidPemError",
    "KeyPair",
    "Leaf",
    "PemProblem",
    "ServiceAccountKeys",
    "Usage",
    "Validity",
    "issue",
    "new_ca",
    "new_request",
    "new_service_account_keys",
    "read_ca",
    "read_service_account_keys",
    "reissue_reason",
    "validity_of",
]
