import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from capelin.pki import KeyPair, issue, new_ca
from capelin.tls import CertificateError, Certificates
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

NOW = datetime.now(UTC)
CA = new_ca("hooks", now=NOW)


def certificate(ca: KeyPair = CA) -> KeyPair:
    return issue(
        ca,
        common_name="guard",
        usages=["server", "client"],
        dns_names=["localhost"],
        addresses=["127.0.0.1"],
        now=NOW,
    )


def write(folder: Path, pair: KeyPair) -> KeyPair:
    (folder / "tls.crt").write_bytes(pair.certificate_pem)
    (folder / "tls.key").write_bytes(pair.private_key_pem)
    return pair


def serial(pair: KeyPair) -> int:
    return x509.load_pem_x509_certificate(pair.certificate_pem).serial_number


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)
    writer.close()


@asynccontextmanager
async def serving(certificates: Certificates) -> AsyncGenerator[int]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=certificates.context())
    async with server:
        yield server.sockets[0].getsockname()[1]


class Connection:
    """An accepted client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        self.serial = x509.load_der_x509_certificate(shown).serial_number
        self.protocol = writer.get_extra_info("ssl_object").selected_alpn_protocol()

    async def works(self) -> bool:
        self._writer.write(b"still there\n")
        return await self._reader.readline() == b"still there\n"

    def abort(self) -> None:
        self._writer.close()

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def connect(
    port: int,
    *,
    name: str | None = None,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    shown: Path | None = None,
) -> Connection:
    context = ssl.create_default_context(cadata=CA.certificate_pem.decode())
    context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    if shown is not None:
        context.load_cert_chain(shown / "tls.crt", shown / "tls.key")
    host = name or "127.0.0.1"
    connection = Connection(
        *await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
    )
    try:
        # With TLS 1.3, a rejection arrives after the client has completed its handshake.
        assert await connection.works()
    except BaseException:
        connection.abort()
        raise
    return connection


@pytest.mark.parametrize("name", [None, "localhost"], ids=["by address", "by name"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_renewed_certificate_applies_to_new_connections(
    tmp_path: Path, name: str | None, version: ssl.TLSVersion
) -> None:
    first = write(tmp_path, certificate())
    certificates = Certificates(tmp_path)
    async with serving(certificates) as port:
        old = await connect(port, name=name, version=version)
        second = write(tmp_path, certificate())
        assert certificates.refresh()
        new = await connect(port, name=name, version=version)
        assert [old.serial, new.serial] == [serial(first), serial(second)]
        assert await old.works()
        await old.close()
        await new.close()


async def test_the_server_offers_only_http_1(tmp_path: Path) -> None:
    write(tmp_path, certificate())
    async with serving(Certificates(tmp_path)) as port:
        connection = await connect(port)
        assert connection.protocol == "http/1.1"
        await connection.close()


def test_the_minimum_version_is_tls_1_2(tmp_path: Path) -> None:
    write(tmp_path, certificate())
    assert Certificates(tmp_path).context().minimum_version == ssl.TLSVersion.TLSv1_2


async def test_a_half_renewed_pair_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = write(tmp_path, certificate())
    certificates = Certificates(tmp_path)
    second = certificate()
    async with serving(certificates) as port:
        (tmp_path / "tls.crt").write_bytes(second.certificate_pem)
        assert not certificates.refresh()
        assert not certificates.refresh()
        assert caplog.text.count("Keeping the current certificate") == 1
        still = await connect(port)
        (tmp_path / "tls.key").write_bytes(second.private_key_pem)
        assert certificates.refresh()
        new = await connect(port)
        assert [still.serial, new.serial] == [serial(first), serial(second)]
        await still.close()
        await new.close()


async def test_temporarily_missing_files_do_not_change_the_certificate(tmp_path: Path) -> None:
    first = write(tmp_path, certificate())
    certificates = Certificates(tmp_path)
    (tmp_path / "tls.crt").unlink()
    assert not certificates.refresh()
    write(tmp_path, first)
    assert certificates.refresh()


def test_refresh_ignores_unchanged_files(tmp_path: Path) -> None:
    write(tmp_path, certificate())
    assert not Certificates(tmp_path).refresh()


async def test_refresh_detects_a_replaced_symbolic_link(tmp_path: Path) -> None:
    for number in ("one", "two"):
        (tmp_path / number).mkdir()
        write(tmp_path / number, certificate())
    link = tmp_path / "certs"
    link.symlink_to("one")
    certificates = Certificates(link)
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").rename(link)
    assert certificates.refresh()


async def is_rejected(port: int, shown: Path | None = None) -> bool:
    try:
        await (await connect(port, shown=shown)).close()
    except (ssl.SSLError, ConnectionError, AssertionError):
        return True
    return False


async def test_certificates_can_require_a_client_certificate(tmp_path: Path) -> None:
    for name, ca in (("server", CA), ("friend", CA), ("stranger", new_ca("other", now=NOW))):
        (tmp_path / name).mkdir()
        write(tmp_path / name, certificate(ca))
    client_ca = tmp_path / "clients.crt"
    client_ca.write_bytes(CA.certificate_pem)
    certificates = Certificates(tmp_path / "server", client_ca)
    async with serving(certificates) as port:
        assert not await is_rejected(port, tmp_path / "friend")
        assert await is_rejected(port, tmp_path / "stranger")
        assert await is_rejected(port)


async def test_the_client_ca_can_be_renewed(tmp_path: Path) -> None:
    later = new_ca("later", now=NOW)
    for name, ca in (("server", CA), ("client", later)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, certificate(ca))
    client_ca = tmp_path / "clients.crt"
    client_ca.write_bytes(CA.certificate_pem)
    certificates = Certificates(tmp_path / "server", client_ca)
    async with serving(certificates) as port:
        assert await is_rejected(port, tmp_path / "client")
        client_ca.write_bytes(later.certificate_pem)
        assert certificates.refresh()
        assert not await is_rejected(port, tmp_path / "client")
        assert await is_rejected(port, tmp_path / "server")


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key"])
def test_the_error_names_a_missing_file_with_a_hint(tmp_path: Path, missing: str) -> None:
    write(tmp_path, certificate())
    (tmp_path / missing).unlink()
    with pytest.raises(CertificateError) as error:
        Certificates(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / missing} is unreadable. Mount the certificate there, or use another folder"
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        (b"", "NO_CERTIFICATE_OR_CRL_FOUND"),
        (b"nonsense", "NO_CERTIFICATE_OR_CRL_FOUND"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", ""),
    ],
)
def test_the_error_names_an_invalid_client_ca(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    write(tmp_path, certificate())
    client_ca = tmp_path / "clients.crt"
    if content is not None:
        client_ca.write_bytes(content)
    with pytest.raises(CertificateError) as error:
        Certificates(tmp_path, client_ca)
    message = str(error.value)
    assert message.startswith(f"{client_ca} does not contain a CA for clients ({why}")
    assert message.endswith("). Use a file with certificates in PEM")
    assert "tls." not in message


def test_a_certificate_and_key_that_do_not_match_fail(tmp_path: Path) -> None:
    write(tmp_path, certificate())
    (tmp_path / "tls.key").write_bytes(certificate().private_key_pem)
    with pytest.raises(CertificateError, match="are not a certificate and its key"):
        Certificates(tmp_path)


def test_an_encrypted_key_fails_without_a_password_prompt(tmp_path: Path) -> None:
    pair = write(tmp_path, certificate())
    locked = load_pem_private_key(pair.private_key_pem, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"s3cret")
    )
    (tmp_path / "tls.key").write_bytes(locked)
    with pytest.raises(CertificateError, match="are not a certificate and its key"):
        Certificates(tmp_path)
