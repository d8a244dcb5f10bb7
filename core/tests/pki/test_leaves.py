"""A `Leaf` issues its certificate and decides when to issue it again."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from capelin.pki import Leaf, new_ca
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

NOW = datetime(2030, 1, 1, tzinfo=UTC)
CA = new_ca("kubernetes", now=NOW)
LEAF = Leaf(
    common_name="reef",
    usages=("server",),
    organizations=("sea",),
    dns_names=("reef.sea",),
    addresses=("127.0.0.9",),
)
PEM = LEAF.issue(CA, now=NOW, validity=timedelta(days=100)).certificate_pem


def test_a_leaf_is_due_after_a_share_of_its_validity() -> None:
    ca = CA.certificate_pem
    assert LEAF.reissue_reason(None, ca, now=NOW) == "there is none yet"
    assert LEAF.reissue_reason(PEM, ca, now=NOW) is None
    later = NOW + timedelta(days=60)
    assert LEAF.reissue_reason(PEM, ca, now=later) == "it is due for renewal"
    assert LEAF.reissue_reason(PEM, ca, now=later, share=0.7) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"common_name": "other"}, "its subject is another"),
        ({"organizations": ("other",)}, "its subject is another"),
        ({"dns_names": ("other",)}, "its names and addresses are others"),
        ({"addresses": ("127.0.0.8",)}, "its names and addresses are others"),
        ({"usages": ("client",)}, "its usages are others"),
    ],
)
def test_a_changed_leaf_is_reissued(change: dict[str, Any], reason: str) -> None:
    changed = replace(LEAF, **change)
    assert changed.reissue_reason(PEM, CA.certificate_pem, now=NOW) == reason
    reissued = changed.issue(CA, now=NOW).certificate_pem
    assert changed.reissue_reason(reissued, CA.certificate_pem, now=NOW) is None


def test_a_leaf_has_a_key_of_the_given_algorithm() -> None:
    issued = LEAF.issue(CA, now=NOW, algorithm="rsa-2048")
    key = x509.load_pem_x509_certificate(issued.certificate_pem).public_key()
    assert isinstance(key, rsa.RSAPublicKey)
