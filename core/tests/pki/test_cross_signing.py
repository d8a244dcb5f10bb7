"""A client that trusts only the old CA accepts certificates of the new one, and the reverse."""

import asyncio
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin.pki import KeyPair, cross_sign, is_issued_by, issue, new_ca
from cryptography import x509

NOW = datetime.now(UTC)
FIRST, SECOND, THIRD = (new_ca("kubernetes", now=NOW) for _ in range(3))
CROSSES = cross_sign(THIRD.certificate_pem, SECOND) + cross_sign(SECOND.certificate_pem, FIRST)


def server(ca: KeyPair, folder: Path, crosses: bytes = b"") -> Path:
    leaf = issue(
        ca, common_name="one", usages=("server", "client"), addresses=("127.0.0.1",), now=NOW
    )
    file = folder / "leaf.pem"
    file.write_bytes(leaf.certificate_pem + crosses + leaf.private_key_pem)
    return file


def trusting(purpose: ssl.Purpose, *authorities: KeyPair) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose)
    context.load_verify_locations(
        cadata="".join(authority.certificate_pem.decode() for authority in authorities)
    )
    return context


async def shakes_hands(certificate: Path, *trusted: KeyPair) -> bool:
    """Whether client and server with this certificate accept each other."""
    theirs = trusting(ssl.Purpose.CLIENT_AUTH, *trusted)
    theirs.verify_mode = ssl.CERT_REQUIRED
    theirs.load_cert_chain(certificate)
    mine = trusting(ssl.Purpose.SERVER_AUTH, *trusted)
    mine.load_cert_chain(certificate)
    served: list[bool] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()
        served.append(True)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=theirs) as listening:
        port = listening.sockets[0].getsockname()[1]
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=mine)
            writer.write(b"hello\n")
            answer = await reader.readline()
            writer.close()
        except (ssl.SSLError, ConnectionError):
            return False
    return answer == b"hello\n" and served == [True]


@pytest.mark.parametrize(
    "trusted", [(FIRST,), (SECOND,), (THIRD,), (FIRST, THIRD), (THIRD, SECOND)], ids=range(5)
)
async def test_every_former_ca_vouches_for_the_present_one(
    tmp_path: Path, trusted: tuple[KeyPair, ...]
) -> None:
    assert await shakes_hands(server(THIRD, tmp_path, CROSSES), *trusted)


async def test_without_the_cross_certificate_the_old_ca_is_not_enough(tmp_path: Path) -> None:
    assert not await shakes_hands(server(SECOND, tmp_path), FIRST)


async def test_the_new_ca_does_not_vouch_for_the_old_one(tmp_path: Path) -> None:
    assert not await shakes_hands(server(FIRST, tmp_path, CROSSES), THIRD)


def test_a_cross_certificate_has_the_key_of_the_new_ca_and_the_signature_of_the_old_one() -> None:
    pem = cross_sign(SECOND.certificate_pem, FIRST)
    assert is_issued_by(pem, FIRST.certificate_pem)
    assert not is_issued_by(pem, SECOND.certificate_pem)
    cross, new = map(x509.load_pem_x509_certificate, (pem, SECOND.certificate_pem))
    assert cross.public_key() == new.public_key()
    old = x509.load_pem_x509_certificate(FIRST.certificate_pem)
    assert cross.not_valid_after_utc <= old.not_valid_after_utc


def test_an_unreadable_certificate_is_issued_by_no_ca() -> None:
    assert not is_issued_by(b"hello", FIRST.certificate_pem)
