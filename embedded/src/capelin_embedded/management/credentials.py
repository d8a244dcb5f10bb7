"""Credentials of managers: their tokens for the API server, and their serving certificates.

A manager receives the same as its pod would: a token of its own service account, in a file that is
replaced long before the token expires.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from capelin.api import Model, Time
from capelin.client import Config, Server, Token, User
from capelin.pki import KeyPair, Leaf

from capelin_embedded.apiserver import KeyFiles
from capelin_embedded.processes import private_folder, write_private

TOKEN_VALIDITY: Final = timedelta(hours=24)

TokenSource = Callable[[str, str, timedelta], Awaitable[Token]]
"""Requests a token of a service account from the API server: namespace, name, validity."""


class TokenRecord(Model):
    """A token's validity, stored next to it, so that no code has to decode the token."""

    at: Time
    until: Time
    """An API server may grant less than the requested time."""
    account: str = ""
    """The UID of the service account. Its successor of the same name does not accept the token."""


@dataclass(frozen=True, slots=True)
class Account:
    """A service account, and its API server."""

    namespace: str
    name: str
    server: Server
    uid: str = ""

    def kubeconfig(self, token: Path) -> bytes:
        """A kubeconfig whose clients read the token again whenever it is replaced."""
        return Config(self.server, User(token_file=token), self.namespace).flattened()


def ensure_ca(folder: Path, now: datetime) -> KeyPair:
    """The CA for webhooks, and for Cluster API as a client of extensions.

    It is not the API server's CA: no webhook's certificate gives access to the API server.
    """
    return KeyFiles(folder).ensure_ca("ca", "capelin-webhooks", now)


def token_due(issued: TokenRecord | None, now: datetime, account: str = "") -> bool:
    """Whether to request a token. The last third of the old one's validity is a reserve."""
    if issued is None or issued.account != account:
        return True
    return not issued.at <= now < issued.at + (issued.until - issued.at) * 2 / 3


async def ensure_token(folder: Path, account: Account, ask: TokenSource, now: datetime) -> bool:
    """Write a manager's kubeconfig, and a token if the old one expires soon.

    Returns whether it wrote a new token.
    """
    private_folder(folder)
    _keep(folder / "kubeconfig", account.kubeconfig(folder / "token"))
    note = folder / "token.json"
    try:
        issued = TokenRecord.read_json(note.read_bytes())
    except (FileNotFoundError, ValueError):
        issued = None
    if not token_due(issued, now, account.uid) and (folder / "token").exists():
        return False
    token = await ask(account.namespace, account.name, TOKEN_VALIDITY)
    write_private(folder / "token", token.value.encode())
    record = TokenRecord(at=now, until=token.expires, account=account.uid)
    write_private(note, record.model_dump_json().encode())
    return True


def ensure_certificate(
    folder: Path, ca: KeyPair, *, common_name: str, address: str, now: datetime
) -> bool:
    """Write a manager's certificate for serving and calling, if the old one expires soon.

    Returns whether it wrote a new one. Managers read a replaced certificate by themselves.
    """
    private_folder(folder)
    leaf = Leaf(common_name=common_name, usages=("server", "client"), addresses=(address,))
    return KeyFiles(folder).ensure_leaf("tls", leaf, ca, now)


def _keep(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        write_private(path, content)
