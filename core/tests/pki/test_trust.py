"""One CA takes over from another, and nobody ever meets a certificate that it does not trust."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from capelin.pki import CaChange, bundle, new_ca, next_ca_change, signer, trusted
from hypothesis import given
from hypothesis import strategies as st

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OLD = new_ca("kubernetes", now=NOW)
NEW = new_ca("kubernetes", now=NOW)


def test_a_bundle_holds_each_certificate_once_in_order() -> None:
    old, new = OLD.certificate_pem, NEW.certificate_pem
    assert bundle(new, old + new, b"", old) == new + old


def test_a_bundle_holds_neither_text_nor_keys() -> None:
    pem = b"# the old one\n" + OLD.private_key_pem + OLD.certificate_pem
    assert bundle(pem) == OLD.certificate_pem


def test_an_empty_bundle_is_empty() -> None:
    assert bundle() == b""
    assert bundle(b"\n") == b""


def test_a_bundle_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="PEM"):
        bundle(b"hello")


@dataclass
class Part:
    """One process of a cluster: whom it trusts, and who signed the leaf that it shows."""

    trusts: bytes
    shows: bytes


CERTIFICATES = (OLD.certificate_pem, NEW.certificate_pem)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40))
def test_a_change_of_ca_never_meets_distrust(moves: list[tuple[int, bool]]) -> None:
    """Each move updates one part's trust or its leaf, in any order, to what the stage asks for."""
    parts = [Part(OLD.certificate_pem, OLD.certificate_pem) for _ in range(3)]
    stage: CaChange = "Announce"
    settle = [(index, which) for index in range(3) for which in (True, False)]
    for index, which in [*moves, *settle, *settle, *settle]:
        if which:
            parts[index].trusts = trusted(stage, *CERTIFICATES)
        else:
            parts[index].shows = signer(stage, OLD, NEW).certificate_pem
        assert all(one.shows in other.trusts for one in parts for other in parts)
        stage = next_ca_change(
            stage,
            all_trust_both=all(part.trusts == trusted("Announce", *CERTIFICATES) for part in parts),
            all_signed_by_new=all(part.shows == NEW.certificate_pem for part in parts),
        )
    assert stage == "Retire"
    assert all(part == Part(NEW.certificate_pem, NEW.certificate_pem) for part in parts)


def test_the_signing_ca_comes_first_in_what_is_trusted() -> None:
    old, new = CERTIFICATES
    assert trusted("Announce", old, new) == old + new
    assert trusted("Switch", old, new) == new + old
    assert trusted("Retire", old, new) == new
