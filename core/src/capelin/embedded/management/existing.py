"""An API server that somebody else runs: whether an environment can live in it, and how."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit
from uuid import uuid4

from capelin.api import Unstructured
from capelin.api.views.core import CustomResourceDefinition, Namespace
from capelin.client import Client, ClientError, ClientOptions, Config, ConfigError
from capelin.embedded.addresses import own_addresses, source_towards
from capelin.embedded.management.callback import callable_from
from capelin.embedded.management.environment import Environment, Existing
from capelin.embedded.management.installation import live
from capelin.embedded.management.manifests import INVENTORY, MANAGER, WEBHOOKS, kept, mark_of
from capelin.embedded.management.plan import Component
from capelin.errors import InvalidInputError, UserError

SUPPORTED: Final = ((1, 33), (1, 36))
"""The oldest and the newest version of Kubernetes that Cluster API's core is meant to run on."""

DEFINITIONS: Final = CustomResourceDefinition.resource
_GROUP: Final = "cluster.x-k8s.io"
_ANSWER_SECONDS: Final = 10.0
_EVERYTHING: Final = {"group": "*", "resource": "*", "verb": "*"}


@dataclass(frozen=True, slots=True)
class Found:
    """An API server that an environment can live in."""

    config: Config
    existing: Existing


def configuration(environment: Environment, kubeconfig: Path | None, context: str | None) -> Config:
    """Which API server is meant: the one that is named, the one it had, or kubectl's.

    Raises:
        InvalidInputError: if nothing leads to an API server.
    """
    try:
        if kubeconfig is None and context is None and environment.kubeconfig.exists():
            return Config.from_kubeconfig(environment.kubeconfig)
        return Config.find(kubeconfig, context)
    except ConfigError as error:
        raise InvalidInputError(
            "There is no existing API server to use.",
            reason=_sentence(error),
            hint="Name one with --kubeconfig FILE, and where that has several, --context NAME.",
        ) from error


async def examine(config: Config, environment: Environment, before: Existing | None) -> Found:
    """Find out whether an environment can live in an API server.

    Raises:
        UserError: if it cannot, with what would have to be otherwise.
    """
    url = config.server.address
    options = ClientOptions(timeout=_ANSWER_SECONDS, connect_timeout=_ANSWER_SECONDS)
    async with Client(config, manager=MANAGER, options=options) as client:
        try:
            await _check_rights(client, url)
            version = check_version((await client.request("GET", "/version"))["gitVersion"], url)
            cluster = (await client.get(Namespace, "kube-system")).uid
            if before is not None and before.cluster != cluster:
                raise InvalidInputError(
                    f"Environment {environment.name} lives in another cluster.",
                    reason=f"The one at {url} is not the one that it was started in.",
                    hint=f"Choose another --name, or remove it first: "
                    f"capelin down --name {environment.name}.",
                )
            mark = before.mark if before else f"{environment.name}.{uuid4().hex[:8]}"
            check_nobody_elses(await _cluster_api(client), mark, url)
            address = await _address(client, url, mark, before)
        except ClientError as error:
            raise UserError(
                f"The API server at {url} cannot be used.",
                reason=_sentence(error),
                hint="See that it runs, and that kubectl get nodes works with the same kubeconfig.",
            ) from error
    return Found(config, Existing(cluster=cluster, version=version, address=address, mark=mark))


async def check_vacant(found: Found, components: Iterable[Component]) -> None:
    """Refuse an API server in which anything of an installation is somebody else's.

    Raises:
        InvalidInputError: with what it is, and whose.
    """
    manifests = [
        each
        for component in components
        for each in (*kept(component.manifests), *component.late, component.inventory)
        # Namespaces of others are used, and left to them.
        if each["kind"] != "Namespace"
    ]
    async with Client(found.config, manager=MANAGER) as client:
        there = await live(client, [INVENTORY, *manifests])
    check_nobody_elses(there, found.existing.mark, found.config.server.address)


def check_version(version: str, url: str) -> str:
    """Refuse an API server that is too old or too new.

    Raises:
        InvalidInputError: with the versions that are supported.
    """
    match = re.match(r"v(\d+)\.(\d+)", version)
    oldest, newest = SUPPORTED
    if match is None or not oldest <= (int(match[1]), int(match[2])) <= newest:
        raise InvalidInputError(
            f"The API server at {url} is Kubernetes {version}.",
            reason="Management clusters are supported from "
            f"v{oldest[0]}.{oldest[1]} to v{newest[0]}.{newest[1]}.",
            hint="Choose another API server, or leave out --target to have one started.",
        )
    return version


def check_nobody_elses(objects: Iterable[Unstructured], mark: str, url: str) -> None:
    """Refuse an API server in which somebody else put what an environment would put there.

    Raises:
        InvalidInputError: with whose it is.
    """
    others = [each for each in objects if mark_of(each) != mark]
    if not others:
        return
    first = others[0]
    what = f"{first['kind']} {first['metadata']['name']}"
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    if other := mark_of(first):
        name = other.partition(".")[0]
        raise InvalidInputError(
            f"Another Capelin environment, called {name}, uses the API server at {url}.",
            reason=f"Its label is on {what}{more} ({other}).",
            hint=f"Take it down where it was started, with capelin down --name {name}; "
            "if it is gone, remove all that has this label; or choose another API server.",
        )
    raise InvalidInputError(
        f"The API server at {url} has a Cluster API already.",
        reason=f"{what}{more} came from {_managers(first)}.",
        hint="Remove it first, all of it (clusterctl delete --all --include-crd), "
        "or choose another API server: two would work against each other.",
    )


def belongs_to_cluster_api(obj: Unstructured) -> bool:
    """Whether a CRD defines a kind of Cluster API or a provider, or a webhook is called for one."""
    if obj["kind"] == DEFINITIONS.kind:
        return _is_cluster_apis(obj["spec"]["group"])
    rules = [rule for hook in obj.get("webhooks", []) for rule in hook.get("rules", [])]
    return any(_is_cluster_apis(group) for rule in rules for group in rule.get("apiGroups", []))


def _is_cluster_apis(group: str) -> bool:
    return group == _GROUP or group.endswith(f".{_GROUP}")


def _managers(obj: Unstructured) -> str:
    entries = cast("list[dict[str, Any]]", obj["metadata"].get("managedFields", []))
    # The API server itself writes the status of a CRD.
    said = {each.get("manager", "") for each in entries if not each.get("subresource")}
    return ", ".join(sorted(said - {""})) or "somebody"


async def _check_rights(client: Client, url: str) -> None:
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    asked = {**review, "spec": {"resourceAttributes": _EVERYTHING}}
    if (await client.request("POST", path, body=asked))["status"].get("allowed"):
        return
    raise InvalidInputError(
        f"You are not allowed enough at {url}.",
        reason="Cluster API comes with roles that only somebody who may do everything can grant.",
        hint="Use the credentials of a cluster-admin: another --kubeconfig or --context.",
    )


async def _cluster_api(client: Client) -> list[Unstructured]:
    """What is there of any Cluster API: the kinds, and who is asked about them."""
    listings = [await client.list(each) for each in (DEFINITIONS, *WEBHOOKS)]
    kinds = [DEFINITIONS.kind, *(each.kind for each in WEBHOOKS)]
    # Items of a list do not say what they are.
    objects = [
        {**each, "kind": kind}
        for kind, listing in zip(kinds, listings, strict=True)
        for each in listing.items
    ]
    return [each for each in objects if belongs_to_cluster_api(each)]


async def _address(client: Client, url: str, mark: str, before: Existing | None) -> str:
    """Where the API server reaches this machine: where it did, else as directly as possible."""
    parts = urlsplit(url)
    towards = source_towards(parts.hostname or "", parts.port or 443)
    known = [before.address] if before else []
    # An API server in a container on this machine is called on loopback, and calls its bridge.
    candidates = [*known, *([towards] if towards else []), *own_addresses()]
    wanted = list(dict.fromkeys(candidates))
    called = await callable_from(client, wanted, mark)
    for address in wanted:
        if address in called.addresses:
            return address
    raise UserError(
        f"The API server at {url} cannot call this machine.",
        reason=f"Cluster API's webhooks run here, and it reached none of {', '.join(wanted)}: "
        f"{_sentence(called.complaint)}",
        hint="Let it through a firewall that is in between, or choose an API server "
        "on this machine or in its network.",
    )


def _sentence(said: object) -> str:
    text = " ".join(str(said).split()).removesuffix(".")
    return f"{text[:1].upper()}{text[1:]}."
