"""Leaf certificates as they are wanted: said once, for being made and for being looked at again."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from capelin.pki.certificates import LEAF_VALIDITY, KeyPair, Usage, issue
from capelin.pki.keys import Algorithm
from capelin.pki.renewal import reissue_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A certificate to be had: who it is for and what it may prove."""

    common_name: str
    usages: tuple[Usage, ...]
    organizations: tuple[str, ...] = ()
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()

    def reissue_reason(
        self, certificate_pem: bytes | None, ca_pem: bytes, *, now: datetime, share: float = 0.5
    ) -> str | None:
        """Why it must be issued anew, in words that fit "because ..."; nothing when it is good."""
        return reissue_reason(
            certificate_pem,
            ca_pem,
            common_name=self.common_name,
            usages=self.usages,
            organizations=self.organizations,
            dns_names=self.dns_names,
            addresses=self.addresses,
            now=now,
            share=share,
        )

    def issue(
        self,
        ca: KeyPair,
        *,
        now: datetime,
        validity: timedelta = LEAF_VALIDITY,
        algorithm: Algorithm = "ecdsa-p256",
    ) -> KeyPair:
        """The certificate signed by `ca`; it ends with its CA where it would outlive it."""
        return issue(
            ca,
            common_name=self.common_name,
            usages=self.usages,
            organizations=self.organizations,
            dns_names=self.dns_names,
            addresses=self.addresses,
            now=now,
            validity=validity,
            algorithm=algorithm,
        )
