"""Certificate authorities and leaf certificates, and when to renew them."""

from capelin.pki.certificates import (
    CA_VALIDITY,
    CLOCK_SKEW,
    LEAF_VALIDITY,
    Algorithm,
    KeyPair,
    ServiceAccountKeys,
    Usage,
    cross_sign,
    issue,
    new_ca,
    new_request,
    new_service_account_keys,
)
from capelin.pki.renewal import Leaf, Validity, is_issued_by, reissue_reason, validity_of
from capelin.pki.user_certificates import (
    InvalidPemError,
    PemProblem,
    read_ca,
    read_service_account_keys,
    split_pem,
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
    "cross_sign",
    "is_issued_by",
    "issue",
    "new_ca",
    "new_request",
    "new_service_account_keys",
    "read_ca",
    "read_service_account_keys",
    "reissue_reason",
    "split_pem",
    "validity_of",
]
