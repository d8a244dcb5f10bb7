"""Users of an OpenID Connect provider, and an audit log of theirs, on a real API server."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from capelin.client import Client, Config, Unauthorized, User
from capelin.pki import issue, new_ca
from capelin.testing.waiting import until
from capelin_control_plane.desired.component_files import read_audit_policy
from capelin_control_plane.desired.control_plane import ComponentSettings
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from .rig import NEW, Rig, control_plane, settled

CLIENT = "capelin"
WHO_AM_I = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    users: ["crew:ada"]
  - level: None
"""


def encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


@dataclass
class Issuer:
    """A provider of tokens, of which an API server fetches the keys."""

    key: rsa.RSAPrivateKey
    url: str = ""

    def answer(self, path: str) -> dict[str, Any]:
        if path == "/.well-known/openid-configuration":
            return {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
            }
        public = self.key.public_key().public_numbers()
        modulus = encoded(public.n.to_bytes(256, "big"))
        exponent = encoded(public.e.to_bytes(3, "big"))
        key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "a", "n": modulus, "e": exponent}
        return {"keys": [key]}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        body = json.dumps(self.answer(request.split()[1])).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()

    def token(self, key: rsa.RSAPrivateKey | None = None, **claims: object) -> str:
        """A token of a user, signed by the issuer or with another key."""
        expiry = datetime.now(UTC) + timedelta(hours=1)
        header = {"alg": "RS256", "kid": "a"}
        content = {"iss": self.url, "aud": CLIENT, "exp": int(expiry.timestamp()), **claims}
        signed = ".".join(encoded(json.dumps(part).encode()) for part in (header, content))
        signature = (key or self.key).sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{encoded(signature)}"


@asynccontextmanager
async def issuing(folder: Path) -> AsyncGenerator[tuple[Issuer, Path]]:
    """An issuer over TLS, and its CA."""
    now = datetime.now(UTC)
    authority = new_ca("issuer", now=now)
    pair = issue(
        authority, common_name="issuer", usages=["server"], addresses=["127.0.0.1"], now=now
    )
    (folder / "ca.crt").write_bytes(authority.certificate_pem)
    (folder / "both.pem").write_bytes(pair.certificate_pem + pair.private_key_pem)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "both.pem")
    issuer = Issuer(new_key())
    server = await asyncio.start_server(issuer.serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        issuer.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield issuer, folder / "ca.crt"


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def audited(log: Path) -> list[dict[str, Any]]:
    """Events of the audit log in an API server's log."""
    lines = [line for line in log.read_text().splitlines() if line.startswith('{"kind":"Event"')]
    return [json.loads(line) for line in lines]


@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_a_user_of_an_issuer_can_sign_in_and_is_audited(rig: Rig, tmp_path: Path) -> None:
    async with issuing(tmp_path) as (issuer, ca):
        desired = control_plane(NEW)
        # The CAs of the machine verify issuers: no field sets another CA.
        trusting = ComponentSettings(environment={"SSL_CERT_FILE": str(ca)})
        desired = replace(
            desired,
            oidc={
                "oidc-issuer-url": issuer.url,
                "oidc-client-id": CLIENT,
                "oidc-username-claim": "name",
                "oidc-username-prefix": "crew:",
                "oidc-groups-claim": "teams",
                "oidc-groups-prefix": "team:",
            },
            audit_policy=read_audit_policy(POLICY),
            settings={**desired.settings, "kube-apiserver": trusting},
        )
        await rig.until(desired, settled)
        assert rig.endpoint is not None
        server = rig.backend.client_config(rig.endpoint).server

        async def who_am_i(token: str) -> dict[str, Any] | None:
            try:
                async with Client(Config(server, User(token=token))) as client:
                    review = await client.request("POST", PATH, body=WHO_AM_I)
            except Unauthorized:
                return None
            return review["status"]["userInfo"]

        # The API server fetches the keys in the background.
        token = issuer.token(name="ada", teams=["deck"])
        user = await until(lambda: who_am_i(token))
        assert user["username"] == "crew:ada"
        assert user["groups"] == ["team:deck", "system:authenticated"]
        assert await who_am_i(issuer.token(new_key(), name="ada")) is None

    events = audited(rig.folder / "run" / "kube-apiserver-0.log")
    assert {event["user"]["username"] for event in events} == {"crew:ada"}
    assert {event["requestURI"].partition("?")[0] for event in events} == {PATH}
