"""A tenant with real permissions that sends bytes which no client library would send."""

import asyncio
import json
import re
import ssl
import time
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
from capelin.api import Unstructured
from capelin.client import Client, ClientError, Config
from capelin_embedded.binaries import TESTED_KUBERNETES
from capelin_embedded.management import Environment
from capelin_lifecycle.api import LifecyclePolicy

from tests.faults.hostile import HostileServers

ATTACKER: Final = "mallory"
"""The attacker's namespace and service account."""
VERSION, NEXT_VERSION = TESTED_KUBERNETES[-2:]
CAPI: Final = "/apis/cluster.x-k8s.io/v1beta2"
POLICIES: Final = "/apis/runtime.capelin.cluster.x-k8s.io/v1alpha1"
CORE_API: Final = "/api/v1"
_GROUPS: Final = {
    "cluster.x-k8s.io": (
        "clusterclasses",
        "clusters",
        "machinedeployments",
        "machinehealthchecks",
        "machinepools",
        "machines",
        "machinesets",
    ),
    "bootstrap.cluster.x-k8s.io": ("kubeadmconfigs", "kubeadmconfigtemplates"),
    "controlplane.cluster.x-k8s.io": ("capelincontrolplanes", "capelincontrolplanetemplates"),
    "infrastructure.cluster.x-k8s.io": (
        "capelinclusters",
        "capelinclustertemplates",
        "capelinmachinepools",
        "capelinmachinepooltemplates",
        "capelinmachines",
        "capelinmachinetemplates",
    ),
    "runtime.capelin.cluster.x-k8s.io": ("lifecyclepolicies",),
    "": ("configmaps", "secrets"),
}
_RULES: Final[list[Unstructured]] = [
    *(
        {"apiGroups": [group], "resources": list(resources), "verbs": ["*"]}
        for group, resources in _GROUPS.items()
    ),
    {
        "apiGroups": ["runtime.capelin.cluster.x-k8s.io"],
        "resources": ["lifecycleresults"],
        "verbs": ["get", "list", "watch", "delete"],
    },
]
"""The permissions of the ClusterRole `edit`: no status, and only its namespace."""
FAILURES: Final = (ClientError, HTTPException, OSError, TimeoutError)
"""Errors of a busy API server, which do not end the campaign."""
_KEPT_OBJECTS: Final = 90
_SPACES: Final = "\u00a0\u1680\u2003\u2028\u202f\u3000\ufeff\u200b\u0085\v\f"
_ODD: Final = _SPACES + "\u0660\u0967\uff11\u212a\u0130\u00df\u202e\u0301\U0001f41f"
_NAME: Final = re.compile(rb'"metadata":\{"name":"([^"]+)"')
_ADMISSION_POLICY: Final = re.compile(r"ValidatingAdmissionPolicy '([^']+)'")


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    """The prefix of the names of its objects."""
    run: Callable[["Attacker"], Awaitable[object]]
    limits: tuple[str, ...]
    """Parts of messages which show that a limit or check of the product stopped the attack."""


@dataclass
class AttackFigures:
    """Counts and results of a kind of attack."""

    times: int = 0
    accepted: int = 0
    """Writes that the API server accepted."""
    refused: int = 0
    stopped: set[str] = field(default_factory=set[str])
    """Objects and answers that show that a limit was reached."""
    texts: Counter[str] = field(default_factory=Counter[str])
    """Other answers and messages, for people who look for a missing limit."""
    longest_pause: float = 0.0
    """Seconds between two attacks of this kind."""
    last: float | None = None

    def begin(self, now: float) -> None:
        self.times += 1
        if self.last is not None:
            self.longest_pause = max(self.longest_pause, now - self.last)
        self.last = now


class Evidence:
    """The figures of all kinds of attacks."""

    def __init__(self, attacks: Iterable[Attack]) -> None:
        self._attacks = {attack.name: attack for attack in attacks}
        self.figures = {name: AttackFigures() for name in self._attacks}

    def add(self, attack: str, source: str, text: str) -> None:
        """Record a text about an object or an answer. Each source counts once."""
        figures = self.figures[attack]
        if any(limit in text for limit in self._attacks[attack].limits):
            figures.stopped.add(source)
        elif text:
            figures.texts[shortened(text)] += 1

    def add_about(self, name: str, text: str) -> None:
        """Record a text about an object, whose name contains the kind of attack."""
        attack = name.rpartition("-")[0]
        if attack in self._attacks:
            self.add(attack, name, text)

    def limits_of(self, attack: str) -> str:
        """The texts that show that a kind of attack was stopped."""
        return ", ".join(self._attacks[attack].limits)


def shortened(text: str) -> str:
    """The end of a text, without digits and without most of the characters that a tenant wrote."""
    return "".join(c for c in text if c.isascii() and c.isprintable() and not c.isdigit())[-100:]


def rounds(attacks: Sequence[Attack], random: Random) -> Iterator[Attack]:
    """All kinds of attacks in random rounds, so that each occurs regularly."""
    while True:
        yield from random.sample(attacks, len(attacks))


@dataclass
class Attacker:
    """Runs attacks, and counts accepted and refused objects."""

    environment: Environment
    administrator: Client
    token: str
    servers: HostileServers
    random: Random
    evidence: Evidence
    problems: list[str] = field(default_factory=list[str])
    _written: list[str] = field(default_factory=list[str])
    """The paths of the attacker's objects, oldest first."""
    _attack: str = ""
    _following: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def attack(self, attacks: Iterator[Attack]) -> None:
        try:
            await self._attack_in_order(attacks)
        finally:
            for task in self._following:
                task.cancel()
            await asyncio.gather(*self._following, return_exceptions=True)

    async def _attack_in_order(self, attacks: Iterator[Attack]) -> None:
        for attack in attacks:
            self._attack = attack.name
            self.figures.begin(time.monotonic())
            try:
                await attack.run(self)
            except FAILURES as error:
                self.answered(f"{type(error).__name__}: {error}")
            while len(self._written) > _KEPT_OBJECTS:
                with suppress(*FAILURES):
                    await self.send("DELETE", self._written.pop(0), b"")
            await asyncio.sleep(self.random.uniform(0, 1))

    @property
    def figures(self) -> AttackFigures:
        """The figures of the current attack."""
        return self.evidence.figures[self._attack]

    def answered(self, text: str, attack: str = "") -> None:
        """Record an answer to an attack, by default to the current one."""
        name = attack or self._attack
        source = f"answer {self.evidence.figures[name].times}: {text}"
        self.evidence.add(name, source, text)

    def follow_up(self, work: Coroutine[Any, Any, None]) -> None:
        """Continue an attack in the background."""
        task = asyncio.create_task(work)
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    async def create(self, plural: str, body: str | Unstructured, group: str) -> bool:
        text = body if isinstance(body, str) else json.dumps(body)
        path = f"{group}/namespaces/{ATTACKER}/{plural}"
        status, answer = await self.send("POST", path, text.encode("utf-8", "surrogatepass"))
        self._count(status, answer)
        # The answer can be too deep for the parser.
        if status == 201 and (name := _NAME.search(answer)):
            self._written.append(f"{path}/{name[1].decode()}")
        return status == 201

    async def change(self, path: str, patch: Unstructured) -> bool:
        group, plural, name = path.rsplit("/", 2)
        full = f"{group}/namespaces/{ATTACKER}/{plural}/{name}"
        status, answer = await self.send("PATCH", full, json.dumps(patch).encode())
        self._count(status, answer)
        return status == 200

    async def delete(self, path: str) -> bool:
        group, plural, name = path.rsplit("/", 2)
        full = f"{group}/namespaces/{ATTACKER}/{plural}/{name}"
        status, answer = await self.send("DELETE", full, b"")
        self._count(status, answer)
        return status == 200

    async def watch(self, group: str, plural: str) -> AsyncGenerator[bytes]:
        """All objects of a kind that the attacker can read and their changes, piece by piece."""
        server = Config.from_kubeconfig(self.environment.kubeconfig).server
        trust = ssl.create_default_context(cadata=_pem(server.ca))
        head = {"Authorization": f"Bearer {self.token}"}
        url = f"{server.address}{group}/namespaces/{ATTACKER}/{plural}?watch=1&timeoutSeconds=600"
        limits = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(headers=head, timeout=limits) as session,
            session.get(url, ssl=trust) as response,
        ):
            async for piece in response.content.iter_any():
                yield piece

    async def send(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Send bytes to the management API server as the attacker."""
        return await asyncio.to_thread(self._send, method, path, body)

    def _send(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        server = Config.from_kubeconfig(self.environment.kubeconfig).server
        trust = ssl.create_default_context(cadata=_pem(server.ca))
        address = urlsplit(server.address)
        connection = HTTPSConnection(
            address.hostname or "", address.port, context=trust, timeout=30
        )
        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            head = {"Authorization": f"Bearer {self.token}", "Content-Type": content}
            connection.request(method, path, body, head)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _count(self, status: int, answer: bytes) -> None:
        if status < 300:
            self.figures.accepted += 1
        else:
            self.figures.refused += 1
            self.answered(refusal(status, answer))

    def name(self) -> str:
        """A new name, which contains the kind of attack."""
        return f"{self._attack}-{self.random.randrange(10**9)}"

    def odd(self, length: int) -> str:
        """Text of characters that parsers read differently."""
        return "".join(self.random.choice(_ODD + "az09/:.-") for _ in range(length))


def refusal(status: int, answer: bytes) -> str:
    """Why an API server refused a request: its reason, and the admission policy if one did."""
    try:
        body: Any = json.loads(answer)
        reason, message = str(body.get("reason", "")), str(body.get("message", ""))
    except (ValueError, AttributeError, RecursionError):
        return f"{status}"
    policy = _ADMISSION_POLICY.search(message)
    return f"{status} {policy[1] if policy else reason}".rstrip()


async def grant(client: Client) -> None:
    """Give the attacker the permissions of a tenant who may also write policies."""
    rbac, group = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    metadata = {"name": ATTACKER, "namespace": ATTACKER}
    await client.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    role = {"apiVersion": rbac, "kind": "Role", "metadata": metadata, "rules": _RULES}
    await client.apply(role)
    await client.apply(
        {
            "apiVersion": rbac,
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": ATTACKER},
            "subjects": [{"kind": "ServiceAccount", "name": ATTACKER, "namespace": ATTACKER}],
        }
    )


def policy(
    name: str, namespace: str, action: Unstructured, hook: str = "BeforeClusterUpgrade"
) -> Unstructured:
    return {
        "apiVersion": LifecyclePolicy.resource.api_version,
        "kind": "LifecyclePolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hook": hook, "action": action},
    }


def validate(expression: str) -> Unstructured:
    """An action with one rule."""
    return {"validate": {"rules": [{"expression": expression, "message": "no"}]}}


def _pem(source: bytes | Path | None) -> str:
    assert source is not None
    return (source.read_bytes() if isinstance(source, Path) else source).decode()
