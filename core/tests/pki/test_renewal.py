"""Renewal depends only on the certificate and the clock."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from capelin.pki import issue, new_ca, reissue_reason, validity_of
from hypothesis import given
from hypothesis import strategies as st

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
CA = new_ca("kubernetes", now=NOW)
DESIRED: dict[str, Any] = {
    "common_name": "kube-apiserver",
    "organizations": ("o",),
    "usages": ("server", "client"),
    "dns_names": ("kubernetes", "kubernetes.default"),
    "addresses": ("127.64.0.1",),
}
LEAF = issue(CA, now=NOW, validity=timedelta(days=100), **DESIRED)

shares = st.floats(0.01, 1)
seconds = st.integers(-(10**7), 2 * 10**7)


@given(share=shares, first=seconds, then=st.integers(0, 10**7))
def test_a_due_renewal_stays_due(share: float, first: int, then: int) -> None:
    early, late = NOW + timedelta(seconds=first), NOW + timedelta(seconds=first + then)
    due = "it is due for renewal"
    assert reason(now=early, share=share) != due or reason(now=late, share=share) == due


@given(share=shares)
def test_renewal_falls_within_the_validity(share: float) -> None:
    life = validity_of(LEAF.certificate_pem)
    moment = life.after(share)
    assert life.not_before < moment <= life.not_after
    assert reason(now=moment, share=share) == "it is due for renewal"
    before = reason(now=moment - timedelta(microseconds=1), share=share)
    assert before in {None, "it is not valid yet"}


@given(smaller=shares, larger=shares)
def test_a_larger_share_is_never_due_earlier(smaller: float, larger: float) -> None:
    smaller, larger = sorted((smaller, larger))
    life = validity_of(LEAF.certificate_pem)
    assert life.after(smaller) <= life.after(larger)


def test_a_leaf_is_due_after_half_its_validity_by_default() -> None:
    # The validity begins five minutes before the issue.
    half = NOW + timedelta(days=50, minutes=-2.5)
    assert reason(now=half) == "it is due for renewal"
    assert reason(now=half - timedelta(seconds=1)) is None


@pytest.mark.parametrize("share", [0, -1, 1.01])
def test_an_invalid_share_fails(share: float) -> None:
    with pytest.raises(ValueError, match="more than 0 and at most 1"):
        validity_of(LEAF.certificate_pem).after(share)


def reason(**changes: Any) -> str | None:
    desired: dict[str, Any] = {"now": NOW, **DESIRED, **changes}
    return reissue_reason(LEAF.certificate_pem, CA.certificate_pem, **desired)


def test_a_current_leaf_stays() -> None:
    assert reason() is None


def test_the_order_of_names_and_usages_does_not_matter() -> None:
    assert (
        reason(dns_names=["kubernetes.default", "kubernetes"], usages=["client", "server"]) is None
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"common_name": "other"}, "its subject is another"),
        ({"organizations": ()}, "its subject is another"),
        ({"dns_names": ("kubernetes",)}, "its names and addresses are others"),
        ({"addresses": ("127.64.0.1", "10.0.0.1")}, "its names and addresses are others"),
        ({"usages": ("server",)}, "its usages are others"),
        ({"now": NOW + timedelta(days=51)}, "it is due for renewal"),
        ({"now": NOW + timedelta(days=200)}, "it is due for renewal"),
        # The clock was ahead when the leaf was issued and is correct again.
        ({"now": NOW - timedelta(days=1)}, "it is not valid yet"),
    ],
)
def test_changed_leaf_is_issued_again(changes: dict[str, Any], expected: str) -> None:
    assert reason(**changes) == expected


def test_a_larger_share_delays_the_renewal() -> None:
    assert reason(now=NOW + timedelta(days=79), share=0.8) is None


def with_an_extension_twice(pem: bytes) -> bytes:
    begin, *body, end = pem.splitlines(keepends=True)
    content = base64.b64decode(b"".join(body))
    subject_key_id, authority_key_id = bytes.fromhex("0603551d0e"), bytes.fromhex("0603551d23")
    return begin + base64.encodebytes(content.replace(authority_key_id, subject_key_id)) + end


TWICE_THE_SAME_EXTENSION = with_an_extension_twice(LEAF.certificate_pem)


def test_a_leaf_of_another_ca_is_reissued() -> None:
    other = new_ca("kubernetes", now=NOW)
    assert (
        reissue_reason(LEAF.certificate_pem, other.certificate_pem, now=NOW, **DESIRED)
        == "another CA has signed it"
    )


@pytest.mark.parametrize(
    ("pem", "expected"),
    [
        (None, "there is none yet"),
        (b"\xff", "the present one cannot be read"),
        (TWICE_THE_SAME_EXTENSION, "the present one cannot be read"),
    ],
)
def test_a_missing_or_broken_leaf_is_reissued(pem: bytes | None, expected: str) -> None:
    assert reissue_reason(pem, CA.certificate_pem, now=NOW, **DESIRED) == expected


def test_a_leaf_without_names_is_compared_too() -> None:
    bare = issue(CA, common_name="x", usages=("client",), now=NOW)
    pem, ca = bare.certificate_pem, CA.certificate_pem
    assert reissue_reason(pem, ca, common_name="x", usages=("client",), now=NOW) is None
    assert (
        reissue_reason(pem, ca, common_name="x", usages=("client",), dns_names=["x"], now=NOW)
        == "its names and addresses are others"
    )
    assert (
        reissue_reason(ca, ca, common_name="kubernetes", usages=("client",), now=NOW)
        == "its usages are others"
    )
