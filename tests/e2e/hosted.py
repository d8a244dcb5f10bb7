"""A control plane on the pods of a kind cluster, under continuous load of clients."""

import asyncio
import base64
import re
import ssl
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import uuid4

import yaml
from capelin.api.core import ConfigMap, Pod
from capelin.client import Client, Config, TooManyRequests
from capelin.contract import READY, is_condition_true
from capelin.testing.waiting import until
from capelin_control_plane.desired.control_plane import RENEW_ANNOTATION

from tests.faults.http2 import Http2Load
from tests.load import Answer, Load
from tests.support.control_planes import ControlPlane

from .kind_cluster import KindCluster, copy_to, run

_URL = "/api/v1/namespaces/default/configmaps?number=[1-1000000]"
_PAUSE_SECONDS = 0.1
_LONGEST_LOAD = "900s"
_LEADER_ENDED = re.compile(r": 500 .*etcdserver: (leader changed|request timed out)")
_CERTIFICATES = ("ca.crt", "client.crt", "client.key")


@dataclass(frozen=True)
class Hosted(ControlPlane):
    """A control plane on pods of a kind cluster."""

    kind: KindCluster = field(kw_only=True)

    async def pods(self, component: str | None = None) -> list[Pod]:
        labels = {"app.kubernetes.io/instance": self.name}
        if component is not None:
            labels["app.kubernetes.io/component"] = component
        return (await self.client.list(Pod, self.namespace, labels=labels)).items

    async def evict(self, pod: Pod) -> None:
        async def is_evicted() -> bool:
            try:
                await self.client.evict(pod.name, self.namespace, uid=pod.uid)
            except TooManyRequests:
                return False
            return True

        await until(is_evicted, within=240)

    async def _has_ended_the_rest(self) -> bool:
        return all(pod.metadata.deletion_timestamp is None for pod in await self.pods())


async def renew_certificates(hosted: Hosted) -> None:
    """Renew all certificates, and wait until the kubeconfig and all API servers have new ones."""
    kubeconfig, served = await hosted.kubeconfig(), await _served_certificates(hosted)
    await hosted.annotate(RENEW_ANNOTATION, datetime.now(UTC).isoformat())
    await until(hosted.kubeconfig, lambda now: now != kubeconfig, within=60)
    # Kubelets update a changed Secret in pods within two minutes.
    await until(lambda: _served_certificates(hosted), served.isdisjoint, within=240)


async def _served_certificates(hosted: Hosted) -> set[bytes]:
    """What API servers show: each of two is met, but for once in thousands of times."""
    server = urlsplit(Config.from_kubeconfig(await hosted.kubeconfig()).server.address)
    certificates = set[bytes]()
    for _ in range(12):
        _, writer = await asyncio.open_connection(server.hostname, server.port, ssl=trust_anybody())
        certificates.add(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
        writer.close()
    return certificates


def trust_anybody() -> ssl.SSLContext:
    """A TLS context without verification."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def is_ready(pod: Pod) -> bool:
    return is_condition_true(pod.status.conditions, READY)


class ClosedBeforeAnswerError(ConnectionError):
    """A server closed a kept connection while a request was in flight."""


class Http1Load(Load):
    """Distinguishes requests that fail because an idle HTTP/1.1 connection closes.

    A stopping API server cannot prevent that: see the planned changes in docs/figures.md.
    """

    async def exchange(self, method: str, path: str, content: object) -> Answer:
        """Send a request once and read the response."""
        is_kept = self._kept is not None and not self._kept.is_over
        try:
            return await super().exchange(method, path, content)
        except (asyncio.IncompleteReadError, ConnectionResetError, BrokenPipeError) as error:
            # Only the head of an answer has no expected length.
            is_answered = isinstance(error, asyncio.IncompleteReadError) and (
                error.partial or error.expected is not None
            )
            if not is_kept or is_answered:
                raise
            raise ClosedBeforeAnswerError from error


@dataclass
class Clients:
    """Clients outside and on nodes: HTTP/1.1 and HTTP/2, new and kept connections, a watch."""

    loads: Mapping[str, Load]
    """Clients outside the cluster, which write and read. The watch must report their writes."""
    answers: Mapping[str, list[str]]
    """Results of curl for each request on nodes."""
    watched: set[str] = field(default_factory=set[str])
    """Objects that the watch has reported."""

    def failed(self) -> list[str]:
        """Failed requests, without responses 429 and without closed connections (see `closed`)."""
        return [
            *(failure for failure in self._failures() if not _is_closed(failure)),
            *(
                f"{name}: {answer}"
                for name, answers in self.answers.items()
                for answer in answers
                if not answer.startswith(("200", "429"))
            ),
        ]

    def closed(self) -> list[str]:
        """Requests over kept HTTP/1.1 connections that closed before the answer."""
        return [failure for failure in self._failures() if _is_closed(failure)]

    def _failures(self) -> list[str]:
        return [
            f"{name}: {failure}" for name, load in self.loads.items() for failure in load.failed
        ]

    def counts(self) -> dict[str, int]:
        """Numbers of sent and postponed requests and of closed connections."""
        loads = self.loads.values()
        return {
            **{f"requests {name}": load.sent for name, load in self.loads.items()},
            **{f"requests {name}": len(answers) for name, answers in self.answers.items()},
            "asked to come later": sum(load.postponed for load in loads)
            + sum(line.startswith("429") for lines in self.answers.values() for line in lines),
            "kept HTTP/1.1 connection closed before the answer": len(self.closed()),
        }

    async def make_progress(self, count: int = 20) -> None:
        """Wait until each client has this many more answers."""
        before = {name: len(answers) for name, answers in self.answers.items()}
        for load in self.loads.values():
            await load.reaches(load.sent + count)
        # Each separately: on a slow machine, one client may lag behind another.
        await until(
            lambda: all(
                len(answers) >= before[name] + count for name, answers in self.answers.items()
            ),
            within=60,
        )

    def written(self) -> set[str]:
        return {name for load in self.loads.values() for name in load.written}


@asynccontextmanager
async def under_load(
    hosted: Hosted, folder: Path, machine: str | None = None, most_closed: int = 0
) -> AsyncGenerator[Clients]:
    """Clients that use a control plane within the context, optionally also on one of its machines.

    At the end, all acknowledged writes exist, the watch has reported them, and at most
    `most_closed` requests have failed with a kept HTTP/1.1 connection.
    """
    kubeconfig = await hosted.kubeconfig()
    config = Config.from_kubeconfig(kubeconfig)
    nodes = {"on the node": hosted.kind.node} | ({"on a machine": machine} if machine else {})
    _write_certificates(kubeconfig, folder, nodes.values())
    loads: dict[str, Load] = {
        f"outside, {protocol}, {'kept' if keeps else 'new'}": load(
            config, _PAUSE_SECONDS, keeps, f"{prefix}-{uuid4().hex[:6]}"
        )
        for protocol, prefix, load in (("HTTP/1.1", "one", Http1Load), ("HTTP/2", "two", Http2Load))
        for keeps in (False, True)
    }
    clients = Clients(loads, {f"{place}, {name}": [] for place in nodes for name in _CURL})
    tasks = [asyncio.create_task(load.run()) for load in loads.values()]
    tasks.append(asyncio.create_task(_watch(config, clients.watched)))
    for (place, node), (name, options) in product(nodes.items(), _CURL.items()):
        command = _curl(config.server.address, folder, options)
        # A process outlives the `docker exec` that started it.
        on_node = ("docker", "exec", node, "timeout", _LONGEST_LOAD, *command)
        tasks.append(asyncio.create_task(_ask(on_node, clients.answers[f"{place}, {name}"])))
    try:
        await clients.make_progress()
        yield clients
        await clients.make_progress()
        await until(
            lambda: clients.written() - clients.watched, lambda missing: not missing, within=60
        )
        # The clients continue to write during this list.
        written = clients.written()
        async with hosted.workload() as workload:
            kept = {found.name for found in (await workload.list(ConfigMap, "default")).items}
        assert written - kept == set()
        assert len(clients.closed()) <= most_closed, clients.closed()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in nodes.values():
            run("docker", "exec", node, "sh", "-c", "pkill curl || true")


def met_the_end_of_a_leader(failure: str) -> bool:
    """Whether a request got response 500 because etcd's leader changed."""
    return _LEADER_ENDED.search(failure) is not None


def _is_closed(failure: str) -> bool:
    return failure.endswith(repr(ClosedBeforeAnswerError()))


async def _watch(config: Config, seen: set[str]) -> None:
    async with Client(config, manager="e2e") as client:
        async for event in client.watch(ConfigMap, "default"):
            seen.add(event.object.name)


_CURL = {
    "HTTP/1.1, kept": ("--http1.1",),
    "HTTP/1.1, new": ("--http1.1", "--header", "Connection: close"),
    "HTTP/2, kept": ("--http2",),
}


def _curl(server: str, folder: Path, options: Sequence[str]) -> tuple[str, ...]:
    """Sequential requests with the status of each."""
    ca, certificate, key = (str(folder / name) for name in _CERTIFICATES)
    return (
        *("curl", "--silent", "--output", "/dev/null", *options, "--rate", "10/s"),
        *("--cacert", ca, "--cert", certificate, "--key", key),
        *(
            "--write-out",
            "%{stderr}%{http_code} over HTTP/%{http_version}, curl's error %{exitcode}\\n",
        ),
        server + _URL,
    )


async def _ask(command: tuple[str, ...], lines: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        while line := await process.stderr.readline():
            lines.append(line.decode().strip())
        lines.append("curl has ended")
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _write_certificates(kubeconfig: bytes, folder: Path, nodes: Collection[str]) -> None:
    document = cast("dict[str, Any]", yaml.safe_load(kubeconfig))
    user = document["users"][0]["user"]
    contents = (
        document["clusters"][0]["cluster"]["certificate-authority-data"],
        user["client-certificate-data"],
        user["client-key-data"],
    )
    for name, content in zip(_CERTIFICATES, contents, strict=True):
        path = folder / name
        path.write_bytes(base64.b64decode(content))
        for node in nodes:
            copy_to(node, path)
