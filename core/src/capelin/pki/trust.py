"""Trust: bundles of CAs, and the order in which one CA takes over from another."""

from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from capelin.pki.certificates import KeyPair

CaChange = Literal["Announce", "Switch", "Retire"]
"""How far a change of CA has come.

`Announce`: the old CA signs, both are being made known. `Switch`: everybody trusts both, and the
new CA signs every leaf anew. `Retire`: no leaf of the old CA is left, and the old CA is being
forgotten; once it is everywhere, the change is over. At no step does anybody meet a certificate
that it does not trust.
"""


def bundle(*pems: bytes) -> bytes:
    """Every certificate in `pems` once, in order, and nothing else: never a private key."""
    certificates = dict.fromkeys(
        certificate
        for pem in pems
        if pem.strip()
        for certificate in x509.load_pem_x509_certificates(pem)
    )
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def next_ca_change(stage: CaChange, *, all_trust_both: bool, all_signed_by_new: bool) -> CaChange:
    """The stage after `stage`, or `stage` itself while what it waits for has not happened."""
    match stage:
        case "Announce" if all_trust_both:
            return "Switch"
        case "Switch" if all_signed_by_new:
            return "Retire"
        case _:
            return stage


def trusted(stage: CaChange, old: bytes, new: bytes) -> bytes:
    """The bundle to hand out at a stage, the CA that signs first."""
    match stage:
        case "Announce":
            return bundle(old, new)
        case "Switch":
            return bundle(new, old)
        case "Retire":
            return bundle(new)


def signer(stage: CaChange, old: KeyPair, new: KeyPair) -> KeyPair:
    """The CA that signs leaves at a stage."""
    return old if stage == "Announce" else new
