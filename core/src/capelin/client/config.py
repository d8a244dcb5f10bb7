"""The API server and the user of a client, from a kubeconfig, a Secret or a pod."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from capelin.client import kubeconfig
from capelin.client.errors import ConfigError
from capelin.client.server import Server, User

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The credentials of a pod's service account."""


@dataclass(frozen=True, slots=True)
class Config:
    """One API server, and the user of a client."""

    server: Server
    user: User = field(default_factory=User)
    namespace: str = "default"
    """The namespace of the context."""

    @classmethod
    def from_kubeconfig(
        cls, source: bytes | str | os.PathLike[str], context: str | None = None
    ) -> Self:
        """Read a kubeconfig: the path of a file, or its content as bytes.

        Paths in a file are relative to its folder, paths in bytes to the working directory.

        Raises:
            ConfigError: It is unreadable or unusable.
        """
        return cls(*kubeconfig.load(source, context))

    @classmethod
    def from_secret(cls, data: bytes, context: str | None = None) -> Self:
        """Read a kubeconfig from an untrusted source, such as the owner of a Secret.

        Never pass the same bytes to another program, which may read them differently. Pass the
        output of `safe_kubeconfig` or `flattened`.

        Raises:
            ConfigError: It names a program or a file of this machine, or is unusable.
        """
        return cls(*kubeconfig.load_untrusted(data, context))

    @classmethod
    def in_cluster(
        cls, environ: Mapping[str, str] | None = None, folder: Path = SERVICE_ACCOUNT
    ) -> Self:
        """The API server of this process's cluster, and the service account as the user.

        Raises:
            ConfigError: This process does not run in a cluster.
        """
        environ = os.environ if environ is None else environ
        host = environ.get("KUBERNETES_SERVICE_HOST", "")
        port = environ.get("KUBERNETES_SERVICE_PORT", "")
        token = folder / "token"
        if not host or not port or not token.is_file():
            raise ConfigError(
                f"this process does not run in a cluster: KUBERNETES_SERVICE_HOST, "
                f"KUBERNETES_SERVICE_PORT and {token} are needed"
            )
        address = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        namespace = folder / "namespace"
        return cls(
            Server(address, ca=folder / "ca.crt"),
            User(token_file=token),
            namespace.read_text().strip() if namespace.is_file() else "default",
        )

    @classmethod
    def find(
        cls,
        path: str | os.PathLike[str] | None = None,
        context: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """The kubeconfig at `path`, else `$KUBECONFIG`, else in-cluster, else `~/.kube/config`.

        Raises:
            ConfigError: None of these exists, or the first of them is unusable.
        """
        environ = os.environ if environ is None else environ
        if path is not None:
            return cls(*kubeconfig.load(path, context))
        if listed := environ.get("KUBECONFIG"):
            return cls(*kubeconfig.load_list(listed, context))
        if context is None and environ.get("KUBERNETES_SERVICE_HOST"):
            return cls.in_cluster(environ)
        home = Path(environ.get("HOME") or Path.home()) / ".kube" / "config"
        if not home.is_file():
            raise ConfigError(f"no kubeconfig found: set KUBECONFIG, or put one at {home}")
        return cls(*kubeconfig.load(home, context))

    def flattened(self, *, name: str = "capelin") -> bytes:
        """A kubeconfig with this server, this user and one context, all called `name`."""
        return kubeconfig.flatten(
            self.server, self.user, self.namespace, name, cluster=name, username=name
        )


def new_kubeconfig(server: Server, user: User, *, cluster: str, username: str) -> bytes:
    """A kubeconfig with the context `USERNAME@CLUSTER`, as kubeadm names it."""
    context = f"{username}@{cluster}"
    return kubeconfig.flatten(server, user, None, context, cluster=cluster, username=username)


def safe_kubeconfig(data: bytes, *, name: str = "capelin") -> bytes:
    """A kubeconfig from an untrusted source, made safe for other programs.

    This reads the original and writes a new one. Never pass on the original bytes: another YAML
    parser may find a program to run in them that ours does not.

    Raises:
        ConfigError: It names a program or a file of this machine, or is unusable.
    """
    return Config.from_secret(data).flattened(name=name)
