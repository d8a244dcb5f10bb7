"""Who each manager is to the API server, and how callers know that it is the manager they meet.

A manager gets what its pod would get: a token of its own service account, in a file that is
replaced long before the token ends.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from capelin.api import Model, Time
from capelin.client import Config, Server, Token, User
from capelin.embedded.apiserver import KeyFiles
from capelin.embedded.processes import private_folder, write_private
from capelin.pki import KeyPair, Leaf

TOKEN_VALIDITY: Final = timedelta(hours=24)

TokenSource = Callable[[str, str, timedelta], Awaitable[Token]]
"""Asks the API server for a token of a service account: namespace, name, validity."""


class TokenRecord(Model):
    """A token's life, kept beside it: the token itself need not be taken apart."""

    at: Time
    until: Time
    """An API server may grant less than it is asked for."""


@dataclass(frozen=True, slots=True)
class Account:
    """A service account, and the API server that knows it."""

    namespace: str
    name: str
    server: Server

    def kubeconfig(self, token: Path) -> bytes:
        """A kubeconfig that has the token read anew whenever it is replaced."""
        return Config(self.server, User(token_file=token), self.namespace).flattened()


def ensure_ca(folder: Path, now: datetime) -> KeyPair:
    """The authority that vouches for webhooks, and for Cluster API towards extensions.

    It is not the API server's: no certificate of a webhook is anybody's way into that.
    """
    return KeyFiles(folder).ensure_ca("ca", "capelin-webhooks", now)


def token_due(issued: TokenRecord | None, now: datetime) -> bool:
    """Whether to ask for a token: a third of the old one's life is kept for trouble."""
    return issued is None or not issued.at <= now < issued.at + (issued.until - issued.at) * 2 / 3


async def ensure_token(folder: Path, account: Account, ask: TokenSource, now: datetime) -> bool:
    """Give a manager's folder its kubeconfig and a token that is good for long enough.

    Returns whether there was a new token to write.
    """
    private_folder(folder)
    _keep(folder / "kubeconfig", account.kubeconfig(folder / "token"))
    note = folder / "token.json"
    if not token_due(_issued(note), now) and (folder / "token").exists():
        return False
    token = await ask(account.namespace, account.name, TOKEN_VALIDITY)
    write_private(folder / "token", token.value.encode())
    write_private(note, TokenRecord(at=now, until=token.expires).model_dump_json().encode())
    return True


def ensure_certificate(
    folder: Path, ca: KeyPair, *, common_name: str, address: str, now: datetime
) -> bool:
    """Give a manager's folder a certificate to serve, and to call with, that is far from its end.

    Returns whether a new one was written. Managers read a replaced one by themselves.
    """
    private_folder(folder)
    leaf = Leaf(common_name=common_name, usages=("server", "client"), addresses=(address,))
    return KeyFiles(folder).ensure_leaf("tls", leaf, ca, now)


def _issued(note: Path) -> TokenRecord | None:
    try:
        return TokenRecord.read_json(note.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _keep(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        write_private(path, content)
