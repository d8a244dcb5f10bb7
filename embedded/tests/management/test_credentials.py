"""Credentials of a manager."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from capelin.client import Config, Server, Token
from capelin.pki import new_ca, validity_of
from capelin_embedded.management.credentials import (
    TOKEN_VALIDITY,
    Account,
    TokenRecord,
    ensure_certificate,
    ensure_token,
    token_due,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
CA = new_ca("test", now=NOW)
ACCOUNT = Account(
    "capi-system", "capi-manager", Server("https://127.64.0.9:6443", ca=CA.certificate_pem)
)


class Tokens:
    """Issues tokens with a validity and records the requests."""

    def __init__(self, granted: timedelta = TOKEN_VALIDITY) -> None:
        self.requests: list[tuple[str, str, timedelta]] = []
        self._granted = granted

    async def __call__(self, namespace: str, name: str, validity: timedelta) -> Token:
        self.requests.append((namespace, name, validity))
        return Token(f"token-{len(self.requests)}", NOW + self._granted)


@pytest.mark.parametrize(
    ("age", "due"),
    [
        (timedelta(0), False),
        (TOKEN_VALIDITY / 2, False),
        (TOKEN_VALIDITY * 2 / 3, True),
        (TOKEN_VALIDITY * 2, True),
        # After a clock change, the remaining validity is unknown.
        (-HOUR, True),
    ],
)
def test_a_token_is_due_after_two_thirds_of_its_validity(age: timedelta, due: bool) -> None:
    assert token_due(TokenRecord(at=NOW - age, until=NOW - age + TOKEN_VALIDITY), NOW) is due
    assert token_due(None, NOW)


async def test_a_manager_uses_a_token_of_its_service_account(tmp_path: Path) -> None:
    folder, tokens = tmp_path / "cluster-api", Tokens()
    assert await ensure_token(folder, ACCOUNT, tokens, NOW)
    assert tokens.requests == [("capi-system", "capi-manager", TOKEN_VALIDITY)]
    config = Config.from_kubeconfig(folder / "kubeconfig")
    assert config.server.address == "https://127.64.0.9:6443"
    assert config.user.token_file == folder / "token"
    assert config.namespace == "capi-system"
    assert (folder / "token").read_text() == "token-1"
    assert config.server.ca == CA.certificate_pem


async def test_a_shorter_token_is_renewed_earlier(tmp_path: Path) -> None:
    tokens = Tokens(granted=HOUR)
    await ensure_token(tmp_path, ACCOUNT, tokens, NOW)
    assert not await ensure_token(tmp_path, ACCOUNT, tokens, NOW + HOUR / 2)
    assert await ensure_token(tmp_path, ACCOUNT, tokens, NOW + HOUR * 3 / 4)


async def test_token_of_a_former_account_is_replaced(tmp_path: Path) -> None:
    tokens = Tokens()
    assert await ensure_token(tmp_path, replace(ACCOUNT, uid="1"), tokens, NOW)
    assert not await ensure_token(tmp_path, replace(ACCOUNT, uid="1"), tokens, NOW)
    assert await ensure_token(tmp_path, replace(ACCOUNT, uid="2"), tokens, NOW)


async def test_a_valid_token_is_not_renewed(tmp_path: Path) -> None:
    tokens = Tokens()
    await ensure_token(tmp_path, ACCOUNT, tokens, NOW)
    assert not await ensure_token(tmp_path, ACCOUNT, tokens, NOW + HOUR)
    assert await ensure_token(tmp_path, ACCOUNT, tokens, NOW + 20 * HOUR)
    assert (tmp_path / "token").read_text() == "token-2"


@pytest.mark.parametrize("lost", ["token", "token.json"])
async def test_a_missing_token_is_requested_again(tmp_path: Path, lost: str) -> None:
    tokens = Tokens()
    await ensure_token(tmp_path, ACCOUNT, tokens, NOW)
    (tmp_path / lost).unlink()
    assert await ensure_token(tmp_path, ACCOUNT, tokens, NOW)


def test_credentials_are_private_files(tmp_path: Path) -> None:
    asyncio.run(ensure_token(tmp_path, ACCOUNT, Tokens(), NOW))
    ensure_certificate(tmp_path, CA, common_name="x", address="127.64.0.9", now=NOW)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert "token-1" not in (tmp_path / "kubeconfig").read_text()


def test_a_certificate_is_renewed_before_it_expires(tmp_path: Path) -> None:
    def keep(now: datetime) -> bool:
        return ensure_certificate(tmp_path, CA, common_name="x", address="127.64.0.9", now=now)

    assert keep(NOW)
    assert not keep(NOW + HOUR)
    end = validity_of((tmp_path / "tls.crt").read_bytes()).not_after
    late = end - timedelta(days=30)
    assert keep(late)
    assert validity_of((tmp_path / "tls.crt").read_bytes()).not_after > end
    (tmp_path / "tls.key").unlink()
    assert keep(late)
