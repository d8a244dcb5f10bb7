"""Kubeconfigs in files, for kubectl and clusterctl, and contexts in the user's own file."""

import asyncio
import os
from base64 import b64decode, b64encode
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal
from urllib.parse import quote
from uuid import uuid4

import yaml
from capelin.api import Model, Resource, Unstructured, format_duration
from capelin.api.capi import Cluster
from capelin.api.core import Secret
from capelin.client import Client, Config, User, new_kubeconfig, safe_kubeconfig
from capelin.errors import BusyError, InvalidInputError, MissingError, NotReadyError
from capelin.pki import new_request, validity_of
from capelin_embedded.binaries import DEFAULT_KUBERNETES, Binaries
from capelin_embedded.management import Environment
from capelin_embedded.processes import private_folder, write_private
from pydantic import ValidationError
from rich.console import Console

from capelin_cli.environments.connection import client_of, find_environment, list_clusters

_LISTS: Final = ("clusters", "contexts", "users")
Kubeconfig = dict[str, Any]
Tool = Literal["kubectl", "clusterctl"]
REQUESTS: Final = Resource(
    "certificates.k8s.io",
    "v1",
    "CertificateSigningRequest",
    "certificatesigningrequests",
    namespaced=False,
)
SIGNER: Final = "kubernetes.io/kube-apiserver-client"
SHORTEST: Final = timedelta(minutes=10)
"""Kubernetes issues no shorter certificate."""
_ADMINISTRATORS: Final = "system:masters"
_SIGNED_WITHIN: Final = 30.0
_APPROVED: Final = {
    "type": "Approved",
    "status": "True",
    "reason": "RequestedByAdministrator",
    "message": "capelin kubeconfig --user",
}


async def kubeconfig_of(name: str, cluster: str | None, namespace: str) -> Path:
    """The file of a kubeconfig: the environment's own, or a workload cluster's."""
    environment = find_environment(name)
    if cluster is not None:
        return await workload_kubeconfig(environment, cluster, namespace)
    if not environment.kubeconfig.exists():
        raise MissingError(
            f"Environment {name} has no API server yet.",
            reason="It was never started completely.",
            hint=f"Continue with capelin up -e {name}.",
        )
    return environment.kubeconfig


async def merge_kubeconfigs(name: str, cluster: str | None, namespace: str) -> None:
    """Put contexts into the user's kubeconfig, and make the requested one current.

    Without a cluster, that is the environment's. The contexts of its clusters come along.
    """
    environment = find_environment(name)
    files = [await kubeconfig_of(name, cluster, namespace)]
    if cluster is None:
        for known in await list_clusters(environment):
            namespace = known.namespace or "default"
            with suppress(MissingError):
                files.append(await workload_kubeconfig(environment, known.name, namespace))
    target, contexts = merge_contexts(environment, files)
    console = Console(highlight=False)
    console.print(f"Contexts in {target}: {', '.join(contexts)}.", soft_wrap=True)
    console.print(f"kubectl uses {contexts[0]} from now on.")


async def workload_kubeconfig(environment: Environment, cluster: str, namespace: str) -> Path:
    """A file with a workload cluster's kubeconfig, with the context `capelin-ENV-CLUSTER`."""
    async with client_of(environment) as client:
        secret = await client.find(Secret, f"{cluster}-kubeconfig", namespace)
        if secret is None:
            await find_cluster(client, cluster, namespace)
            raise MissingError(
                f"Cluster {cluster} has no kubeconfig yet.",
                reason="Its control plane makes it when it is initialized.",
                hint="Wait for it: capelin status --watch.",
            )
    path = private_folder(environment.folder / "kubeconfigs") / f"{namespace}.{cluster}"
    # A user who may write the Secret must not run commands as the user who reads the file.
    context = f"capelin-{environment.name}-{cluster}"
    write_private(path, safe_kubeconfig(secret.data["value"], name=context))
    return path


@contextmanager
def kubeconfig_file(content: str) -> Generator[Path]:
    """A private file for as long as the block lasts, for clients that need kubeconfigs in files."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kubeconfig"
        write_private(path, content.encode())
        yield path


async def find_cluster(client: Client, name: str, namespace: str) -> Cluster:
    """A Cluster by name."""
    found = await client.find(Cluster, name, namespace)
    if found is None:
        raise await missing_cluster(client, name, namespace)
    return found


async def missing_cluster(client: Client, name: str, namespace: str) -> MissingError:
    """The error for a Cluster that does not exist, with those that do."""
    others = ", ".join(cluster.name for cluster in (await client.list(Cluster, namespace)).items)
    return MissingError(
        f"Cluster {name} does not exist in namespace {namespace}.",
        reason=f"Clusters there: {others or 'none'}.",
        hint="Name one of them, or another --namespace or environment.",
    )


class MergedContexts(Model):
    """The contexts that were merged into each file. `down` reads it."""

    files: dict[str, list[str]] = {}
    """The names of contexts, by the file that they are in."""


def user_kubeconfig(variables: Mapping[str, str] = os.environ) -> Path:
    """The file that kubectl would write to."""
    named = [part for part in variables.get("KUBECONFIG", "").split(os.pathsep) if part]
    return Path(named[0] if named else "~/.kube/config").expanduser().resolve()


def merged(config: Kubeconfig, additions: Iterable[Kubeconfig], current: str) -> Kubeconfig:
    """A kubeconfig with the entries of others, which replace those of the same names."""
    result: Kubeconfig = {"apiVersion": "v1", "kind": "Config", **config}
    for addition in additions:
        for key in _LISTS:
            names = {entry["name"] for entry in addition.get(key) or ()}
            kept = [entry for entry in result.get(key) or () if entry["name"] not in names]
            result[key] = [*kept, *(addition.get(key) or ())]
    return {**result, "current-context": current}


def without(config: Kubeconfig, names: Sequence[str]) -> Kubeconfig:
    """A kubeconfig without contexts, and without the clusters and users that only they use."""
    contexts: list[Any] = config.get("contexts") or []
    kept = [entry for entry in contexts if entry["name"] not in names]
    gone = [entry for entry in contexts if entry["name"] in names]
    result = {**config, "contexts": kept}
    for key, field in (("clusters", "cluster"), ("users", "user")):
        used = {entry["context"].get(field) for entry in kept}
        orphans = {entry["context"].get(field) for entry in gone} - used
        result[key] = [entry for entry in config.get(key) or () if entry["name"] not in orphans]
    if config.get("current-context") in names:
        result["current-context"] = ""
    return result


def merge_contexts(environment: Environment, files: Sequence[Path]) -> tuple[Path, list[str]]:
    """Put the contexts of kubeconfigs into the user's file. The first one becomes current."""
    target = user_kubeconfig()
    additions = [_read(path) for path in files]
    names = [str(addition["current-context"]) for addition in additions]
    # Recorded first: a context that is recorded and never merged does no harm.
    record = read_record(environment)
    known = record.files.get(str(target), [])
    record.files[str(target)] = sorted({*known, *names})
    write_private(_record(environment), record.model_dump_json(indent=2).encode())
    with _locked(target):
        before = _read(target) if target.exists() else {}
        _write(target, merged(before, additions, names[0]))
    return target, names


def remove_contexts(environment: Environment) -> list[Path]:
    """Remove the contexts of an environment from all files that have them. Returns these files."""
    changed: list[Path] = []
    for name, contexts in read_record(environment).files.items():
        path = Path(name)
        if not path.exists():
            continue
        with _locked(path):
            before = _read(path)
            after = without(before, contexts)
            if after != before:
                _write(path, after)
                changed.append(path)
    return changed


def read_record(environment: Environment) -> MergedContexts:
    """The merged contexts of an environment."""
    try:
        return MergedContexts.read_json(_record(environment).read_bytes())
    except (FileNotFoundError, ValidationError):
        return MergedContexts()


def _record(environment: Environment) -> Path:
    return environment.folder / "merged.json"


def _read(path: Path) -> Kubeconfig:
    try:
        content = yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, UnicodeDecodeError):
        content = path
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidInputError(
            f"{path} is not a kubeconfig.",
            reason="It is not YAML with contexts, clusters and users.",
            hint="Repair it, or name another file in KUBECONFIG.",
        )
    return content  # pyright: ignore[reportUnknownVariableType] - checked by the API server


def _write(path: Path, config: Kubeconfig) -> None:
    write_private(path, yaml.safe_dump(config, sort_keys=False).encode())


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Hold the lock file that kubectl takes when it writes."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = path.with_name(f"{path.name}.lock")
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise BusyError(
            f"Another program is changing {path}.",
            reason=f"{lock} exists.",
            hint="Try again. If no program uses it, remove that file.",
        ) from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


async def prepare_tool(
    tool: Tool, environment: str, cluster: str | None, namespace: str
) -> tuple[Path, dict[str, str]]:
    """A program, and the variables that lead it to the environment or to one of its clusters."""
    found = find_environment(environment)
    settings = found.settings()
    if settings is None:
        raise NotReadyError(
            f"Environment {environment} was never started.",
            reason="Its version of Kubernetes is unknown.",
            hint=f"Start it with capelin up -e {environment}.",
        )
    kubeconfigs = [await kubeconfig_of(environment, None, namespace)]
    if cluster is not None:
        kubeconfigs.insert(0, await kubeconfig_of(environment, cluster, namespace))
    else:
        # So that --context capelin-ENV-CLUSTER works for the clusters that were used before.
        kubeconfigs += sorted((found.folder / "kubeconfigs").glob("*.*"))
    version = settings.kubernetes_version or DEFAULT_KUBERNETES
    program = await Binaries().path(tool, version if tool == "kubectl" else None)
    variables = {"KUBECONFIG": os.pathsep.join(map(str, kubeconfigs))}
    if tool == "clusterctl":
        # Its version belongs to this Cluster API: it must not go online to look for a newer one.
        variables["CLUSTERCTL_DISABLE_VERSIONCHECK"] = "true"
    return program, variables


def run_tool(program: Path, arguments: Sequence[str], variables: dict[str, str]) -> None:
    """Become the program: its terminal, its signals and its exit code are the user's."""
    os.execve(program, [program.name, *arguments], {**os.environ, **variables})  # noqa: S606


@dataclass(frozen=True)
class Access:
    """The user that a certificate names, and how long it is valid."""

    user: str
    groups: tuple[str, ...]
    validity: timedelta

    def request(self) -> tuple[Unstructured, bytes]:
        """A new CertificateSigningRequest, and the private key."""
        if self.validity < SHORTEST:
            raise InvalidInputError(
                f"{format_duration(self.validity)} is too short.",
                reason="Kubernetes issues certificates for 10 minutes or longer.",
                hint="Type --for 10m, or a longer duration.",
            )
        if _ADMINISTRATORS in self.groups:
            raise InvalidInputError(
                f"Kubernetes signs no certificate for the group {_ADMINISTRATORS}.",
                reason="No RBAC rule limits this group.",
                hint="Use another group, and bind the ClusterRole cluster-admin to it.",
            )
        try:
            pem, key = new_request(self.user, self.groups)
        except ValueError as error:
            raise InvalidInputError(
                f'A certificate cannot name the user "{self.user}".',
                reason=f"{error}.",
                hint="Use a name of 1 to 64 characters, and groups of the same length.",
            ) from None
        spec = {
            "request": b64encode(pem).decode(),
            "signerName": SIGNER,
            "usages": ["client auth"],
            "expirationSeconds": int(self.validity.total_seconds()),
        }
        return {
            "apiVersion": REQUESTS.api_version,
            "kind": REQUESTS.kind,
            "metadata": {"name": f"capelin-{uuid4().hex[:12]}"},
            "spec": spec,
        }, key


async def user_kubeconfig_of(
    environment: str, cluster: str, namespace: str, access: Access
) -> tuple[Path, datetime]:
    """A file with the kubeconfig of a user of a workload cluster, and the end of its validity."""
    request, key = access.request()
    administrator = await workload_kubeconfig(find_environment(environment), cluster, namespace)
    config = Config.from_kubeconfig(administrator)
    async with Client(config, manager="capelin-cli") as client:
        certificate = await _sign(client, request)
    user = User(certificate=certificate, key=key)
    path = administrator.with_name(f"{administrator.name}.{quote(access.user, safe='@')}")
    content = new_kubeconfig(config.server, user, cluster=cluster, username=access.user)
    write_private(path, content)
    return path, validity_of(certificate).not_after


async def _sign(client: Client, request: Unstructured) -> bytes:
    """Create and approve a request, and wait for the certificate. The request does not stay."""
    name, approval = request["metadata"]["name"], {"status": {"conditions": [_APPROVED]}}
    await client.create(request, resource=REQUESTS)
    try:
        await client.patch(REQUESTS, name, None, approval, subresource="approval")
        async with asyncio.timeout(_SIGNED_WITHIN):
            while True:
                status: dict[str, Any] = (await client.get(REQUESTS, name))["status"]
                if signed := status.get("certificate"):
                    return b64decode(signed)
                for condition in status["conditions"]:
                    if condition["type"] == "Failed":
                        raise InvalidInputError(
                            "The cluster refuses to sign the certificate.",
                            reason=condition.get("message", "It does not say why."),
                            hint="Change --user, --group or --for.",
                        )
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise NotReadyError(
            f"The cluster did not sign the certificate within {_SIGNED_WITHIN:.0f} s.",
            reason="Its kube-controller-manager signs.",
            hint="Look at it with capelin status, then repeat the command.",
        ) from None
    finally:
        await client.delete(REQUESTS, name)
