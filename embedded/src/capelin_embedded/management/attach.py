"""Checks that an existing API server can host an environment and reach its webhooks."""

import asyncio
import base64
import re
import ssl
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit
from uuid import uuid4

from aiohttp import web
from capelin.api import Unstructured
from capelin.api.core import CustomResourceDefinition, Namespace
from capelin.client import (
    ApiError,
    Client,
    ClientError,
    ClientOptions,
    Config,
    ConfigError,
    load_certificate,
)
from capelin.errors import InvalidInputError, UserError
from capelin.pki import KeyPair, issue, new_ca

from capelin_embedded.addresses import free_port, own_addresses, source_towards
from capelin_embedded.management.components import ALL_ADDRESSES, Component
from capelin_embedded.management.environment import Environment, ExistingServer
from capelin_embedded.management.manifests import (
    ENVIRONMENT_LABEL,
    FIELD_MANAGER,
    INVENTORY_CRD,
    WEBHOOKS,
    environment_label_of,
    find_live,
    without_replaced,
)

_, _CONFIGURATIONS = WEBHOOKS
# An API server starts to use a new configuration within a second or two.
_SECONDS: Final = 15.0
_CALL_SECONDS: Final = 3
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Reachability:
    """Result of the reachability check."""

    addresses: frozenset[str]
    """Addresses at which calls arrived."""
    complaint: str = ""
    """The API server's error if no call arrived."""


async def find_reachable(client: Client, addresses: Sequence[str], mark: str) -> Reachability:
    """Make the API server call these addresses of this machine, and record which calls arrive.

    This installs a webhook for one object while it creates that object in a dry run.
    """
    # The same for all runs of an environment: the next `up` replaces the objects of a killed one.
    name = f"capelin-callback-{mark.partition('.')[0]}"
    probe = f"capelin-callback-{uuid4().hex[:8]}"
    async with _listening(addresses) as listener:
        hooks = [listener.webhook(number, probe) for number in range(len(addresses))]
        try:
            await client.apply(
                {
                    "apiVersion": _CONFIGURATIONS.api_version,
                    "kind": _CONFIGURATIONS.kind,
                    "metadata": {"name": name, "labels": {ENVIRONMENT_LABEL: mark}},
                    "webhooks": hooks,
                }
            )
            complaint = await _ask(client, probe, listener)
        finally:
            await client.delete(_CONFIGURATIONS, name)
    return Reachability(frozenset(addresses[number] for number in listener.called), complaint)


class _Listener:
    """Accepts the calls and records the address of each."""

    def __init__(self, addresses: Sequence[str], port: int, ca: KeyPair) -> None:
        self._addresses = addresses
        self.port = port
        self._ca = ca
        self.called: set[int] = set()

    def webhook(self, number: int, name: str) -> Unstructured:
        """A webhook that calls one address when an object of that name is created."""
        return {
            "name": f"callback-{number}.capelin.cluster.x-k8s.io",
            "clientConfig": {
                "url": f"https://{self._addresses[number]}:{self.port}/{number}",
                "caBundle": base64.b64encode(self._ca.certificate_pem).decode(),
            },
            "rules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["configmaps"],
                }
            ],
            "objectSelector": {"matchLabels": {ENVIRONMENT_LABEL: name}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "timeoutSeconds": _CALL_SECONDS,
            "admissionReviewVersions": ["v1"],
        }

    async def answer(self, request: web.Request) -> web.Response:
        """Record the call and admit the object."""
        self.called.add(int(request.match_info["number"]))
        review: dict[str, Any] = await request.json()
        response = {"uid": review["request"]["uid"], "allowed": True}
        return web.json_response(
            {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}
        )


@asynccontextmanager
async def _listening(addresses: Sequence[str]) -> AsyncGenerator[_Listener]:
    """A server on all addresses, like those of webhooks, inside the `async with`."""
    now = datetime.now(UTC)
    ca = new_ca("capelin-callback", now=now)
    listener = _Listener(addresses, free_port(ALL_ADDRESSES), ca)
    application = web.Application()
    application.router.add_post(r"/{number:\d+}", listener.answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, ALL_ADDRESSES, listener.port, ssl_context=_proof(ca, addresses))
        await site.start()
        yield listener
    finally:
        await runner.cleanup()


def _proof(ca: KeyPair, addresses: Sequence[str]) -> ssl.SSLContext:
    pair = issue(
        ca,
        common_name="capelin-callback",
        usages=("server",),
        addresses=addresses,
        now=datetime.now(UTC),
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, pair.certificate_pem, pair.private_key_pem)
    return context


async def _ask(client: Client, name: str, listener: _Listener) -> str:
    """Create the object until calls arrive or fail. Returns the error if they fail."""
    probe = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", "labels": {ENVIRONMENT_LABEL: name}},
    }
    deadline = asyncio.get_running_loop().time() + _SECONDS
    while asyncio.get_running_loop().time() < deadline:
        try:
            await client.create(probe, dry_run=True)
        except ApiError as error:
            # By now the API server has called all webhooks, even if one of them failed.
            return str(error)
        if listener.called:
            return ""
        await asyncio.sleep(_POLL_SECONDS)
    return f"it made no call within {_SECONDS:.0f} s"


SUPPORTED_SERVERS: Final = ((1, 33), (1, 36))
"""The oldest and the newest version of Kubernetes that Cluster API's core supports."""

DEFINITIONS: Final = CustomResourceDefinition.resource
_GROUP: Final = "cluster.x-k8s.io"
_ANSWER_SECONDS: Final = 10.0
_EVERYTHING: Final = {"group": "*", "resource": "*", "verb": "*"}


@dataclass(frozen=True, slots=True)
class Attachment:
    """An API server that can host an environment."""

    config: Config
    server: ExistingServer


def find_config(environment: Environment, kubeconfig: Path | None, context: str | None) -> Config:
    """The API server to use: the requested one, the environment's own, or kubectl's.

    Raises:
        InvalidInputError: No configuration leads to an API server.
    """
    try:
        if kubeconfig is None and context is None and environment.kubeconfig.exists():
            return Config.from_kubeconfig(environment.kubeconfig)
        return Config.find(kubeconfig, context)
    except ConfigError as error:
        raise InvalidInputError(
            "No existing API server found.",
            reason=_sentence(error),
            hint="Set --kubeconfig FILE and, if it has several contexts, --context NAME.",
        ) from error


async def examine_server(
    config: Config, environment: Environment, before: ExistingServer | None
) -> Attachment:
    """Check whether an API server can host an environment.

    Raises:
        UserError: It cannot. The error names the missing requirement.
    """
    url = config.server.address
    options = ClientOptions(timeout=_ANSWER_SECONDS, connect_timeout=_ANSWER_SECONDS)
    async with Client(config, manager=FIELD_MANAGER, options=options) as client:
        try:
            await _check_rights(client, url)
            version = check_server_version(
                (await client.request("GET", "/version"))["gitVersion"], url
            )
            cluster = (await client.get(Namespace, "kube-system")).uid
            if before is not None and before.cluster != cluster:
                raise InvalidInputError(
                    f"Environment {environment.name} uses another cluster.",
                    reason=f"The cluster at {url} is not the one that it was created in.",
                    hint=f"Choose another environment with -e, or remove it first: "
                    f"capelin down -e {environment.name}.",
                )
            mark = before.mark if before else f"{environment.name}.{uuid4().hex[:8]}"
            check_ownership(await _cluster_api(client), mark, url)
            address = await _address(client, url, mark, before)
        except ClientError as error:
            raise UserError(
                f"The API server at {url} is not usable.",
                reason=_sentence(error),
                hint="Check that it runs, and that kubectl get nodes works with this kubeconfig.",
            ) from error
    return Attachment(
        config, ExistingServer(cluster=cluster, version=version, address=address, mark=mark)
    )


async def check_vacant(found: Attachment, components: Iterable[Component]) -> None:
    """Reject an API server in which another installation owns one of our objects.

    Raises:
        InvalidInputError: With the object and its owner.
    """
    manifests = [
        manifest
        for component in components
        for manifest in (
            *without_replaced(component.manifests),
            *component.late,
            component.inventory,
        )
        # Use existing namespaces, and leave them to their owners.
        if manifest["kind"] != "Namespace"
    ]
    async with Client(found.config, manager=FIELD_MANAGER) as client:
        there = await find_live(client, [INVENTORY_CRD, *manifests])
    check_ownership(there, found.server.mark, found.config.server.address)


def check_server_version(version: str, url: str) -> str:
    """Reject an API server that is too old or too new.

    Raises:
        InvalidInputError: With the supported versions.
    """
    match = re.match(r"v(\d+)\.(\d+)", version)
    oldest, newest = SUPPORTED_SERVERS
    if match is None or not oldest <= (int(match[1]), int(match[2])) <= newest:
        raise InvalidInputError(
            f"The API server at {url} is Kubernetes {version}.",
            reason="Management clusters are supported from "
            f"v{oldest[0]}.{oldest[1]} to v{newest[0]}.{newest[1]}.",
            hint="Choose another API server, or omit --target to start one.",
        )
    return version


def check_ownership(objects: Iterable[Unstructured], mark: str, url: str) -> None:
    """Reject an API server that has objects of another installation.

    Raises:
        InvalidInputError: With the name of the other installation.
    """
    others = [obj for obj in objects if environment_label_of(obj) != mark]
    if not others:
        return
    first = others[0]
    what = f"{first['kind']} {first['metadata']['name']}"
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    if other := environment_label_of(first):
        name = other.partition(".")[0]
        raise InvalidInputError(
            f"Another Capelin environment, {name}, uses the API server at {url}.",
            reason=f"Its label is on {what}{more} ({other}).",
            hint=f"Remove it on the machine that started it, with capelin down -e {name}. If that "
            "is impossible, remove all objects with this label, or choose another API server.",
        )
    raise InvalidInputError(
        f"The API server at {url} already has a Cluster API.",
        reason=f"{what}{more} came from {_managers(first)}.",
        hint="Remove it completely first (clusterctl delete --all --include-crd), "
        "or choose another API server: two installations would conflict.",
    )


def belongs_to_cluster_api(obj: Unstructured) -> bool:
    """Whether a CRD or webhook is for a kind of Cluster API or of a provider."""
    if obj["kind"] == DEFINITIONS.kind:
        return _is_cluster_apis(obj["spec"]["group"])
    rules = [rule for hook in obj.get("webhooks", []) for rule in hook.get("rules", [])]
    return any(_is_cluster_apis(group) for rule in rules for group in rule.get("apiGroups", []))


def _is_cluster_apis(group: str) -> bool:
    return group == _GROUP or group.endswith(f".{_GROUP}")


def _managers(obj: Unstructured) -> str:
    entries = cast("list[dict[str, Any]]", obj["metadata"].get("managedFields", []))
    # The API server itself writes the status of a CRD.
    managers = {entry.get("manager", "") for entry in entries if not entry.get("subresource")}
    return ", ".join(sorted(managers - {""})) or "an unknown client"


async def _check_rights(client: Client, url: str) -> None:
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    asked = {**review, "spec": {"resourceAttributes": _EVERYTHING}}
    if (await client.request("POST", path, body=asked))["status"].get("allowed"):
        return
    raise InvalidInputError(
        f"You do not have enough permissions at {url}.",
        reason="Only a user with all permissions can grant the roles of Cluster API.",
        hint="Use the credentials of a cluster-admin: another --kubeconfig or --context.",
    )


async def _cluster_api(client: Client) -> list[Unstructured]:
    """The CRDs and webhooks of any Cluster API that is installed."""
    listings = [await client.list(resource) for resource in (DEFINITIONS, *WEBHOOKS)]
    kinds = [DEFINITIONS.kind, *(resource.kind for resource in WEBHOOKS)]
    # Items of a list have no kind.
    objects = [
        {**item, "kind": kind}
        for kind, listing in zip(kinds, listings, strict=True)
        for item in listing.items
    ]
    return [obj for obj in objects if belongs_to_cluster_api(obj)]


async def _address(client: Client, url: str, mark: str, before: ExistingServer | None) -> str:
    """The address at which the API server reaches this machine: the previous one if it works."""
    parts = urlsplit(url)
    towards = source_towards(parts.hostname or "", parts.port or 443)
    known = [before.address] if before else []
    # The address of an API server in a container here is loopback, but it calls the bridge.
    candidates = [*known, *([towards] if towards else []), *own_addresses()]
    wanted = list(dict.fromkeys(candidates))
    called = await find_reachable(client, wanted, mark)
    for address in wanted:
        if address in called.addresses:
            return address
    raise UserError(
        f"The API server at {url} cannot call this machine.",
        reason=f"Cluster API's webhooks run here, but it reached none of {', '.join(wanted)}: "
        f"{_sentence(called.complaint)}",
        hint="Allow it in firewalls between them, or choose an API server "
        "on this machine or in its network.",
    )


def _sentence(complaint: object) -> str:
    text = " ".join(str(complaint).split()).removesuffix(".")
    return f"{text[:1].upper()}{text[1:]}."
