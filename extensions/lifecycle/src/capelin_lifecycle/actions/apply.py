"""Applies manifests to a workload cluster, waits until they are ready, and prunes old ones."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from capelin.api import Unstructured
from capelin.client import ApiError, Client, NotServed
from capelin.contract import CLUSTER_NAME_LABEL, label_value
from capelin.controller import redact

from capelin_lifecycle.actions.action import MANAGER, POLICY_LABEL, Cleanup, Run
from capelin_lifecycle.actions.sources import SourceError, read_source
from capelin_lifecycle.actions.workload import (
    created_object,
    delete_all,
    find_or_create,
    unique_name,
    workload_client,
)
from capelin_lifecycle.api.actions import Source
from capelin_lifecycle.api.results import CreatedObject, LifecycleResult
from capelin_lifecycle.policies.selection import KnownPolicy, in_range
from capelin_lifecycle.policies.verdict import SLOW_SECONDS, Verdict, waiting
from capelin_lifecycle.sandbox.expressions import ExpressionError
from capelin_lifecycle.sandbox.pool import SANDBOX, OverloadError, Question

_VARIABLES: Final = ("object",)
_FIRST: Final = ("CustomResourceDefinition", "Namespace")
_POLL_SECONDS: Final = 5
_MOST_OBJECTS: Final = 512
"""As many as a result records."""


@dataclass(frozen=True, slots=True)
class SourcedObject:
    """An object to apply, with the source of its manifest."""

    manifest: Unstructured
    source: Source
    is_generated: bool
    """Whether it is created once in each attempt, and stays."""

    @property
    def name(self) -> str:
        return f"{self.manifest['kind']} {self.manifest['metadata']['name']}"


def apply_expressions(policy: KnownPolicy) -> dict[str, Question]:
    apply = policy.spec.action.apply
    found: dict[str, Question] = {}
    for number, source in enumerate(apply.sources if apply else []):
        if source.until is not None:
            found[f"sources[{number}].until"] = _until(source.until)
        if source.failure is not None:
            found[f"sources[{number}].failure"] = Question(source.failure, _VARIABLES)
    return found


def _until(text: str) -> Question:
    return Question(text, _VARIABLES, boolean=True)


class ApplyRunner:
    keeps_up = True

    async def reconcile(self, run: Run) -> Verdict:
        """Apply all objects, prune old ones, and check whether they are ready."""
        apply = run.policy.spec.action.apply
        try:
            found = await _read(run, apply.sources if apply else [])
        except SourceError as error:
            return waiting(str(error), SLOW_SECONDS)
        async with workload_client(run) as client:
            manifests = await placed(
                client, [(manifest, _namespace(each)) for manifest, each in found]
            )
            entries = [
                _sourced(run, manifest, source)
                for manifest, (_, source) in zip(manifests, found, strict=True)
            ]
            return await _apply(run, client, entries)

    async def cleanup(self, run: Cleanup) -> None:
        if run.result.created and run.has_workload:
            async with workload_client(run) as client:
                await delete_all(client, run.result.created, run.policy_label)


async def _apply(run: Run, client: Client, entries: Sequence[SourcedObject]) -> Verdict:
    before = await _created_before(run)
    wanted = [created_object(entry.manifest) for entry in entries]
    # Record objects before applying them: a replica may die in between.
    kept = {entry.identity for entry in wanted}
    former = [entry for entry in before if entry.identity not in kept]
    everything = [*wanted, *former]
    if any(entry not in run.created for entry in everything):
        return Verdict("Running", "manifests are being applied", _POLL_SECONDS, everything)
    problems: list[str] = []
    for entry in entries:
        try:
            live = await _write(run, client, entry)
        except NotServed:
            problems.append(f"{entry.name} has a kind that is not installed")
            continue
        except ApiError as error:
            problems.append(f"{entry.name} cannot be applied: {redact(str(error))}")
            continue
        if failure := await _failure(run, entry.source, live):
            text = f"{entry.name} has failed: {redact(failure)}"
            return Verdict("Failed", text, created=everything)
        if (reason := await _unreadiness(run, entry.source, live)) is not None:
            problems.append(f"{entry.name} {reason}")
    if problems:
        return Verdict("Running", "; ".join(problems), _POLL_SECONDS, everything)
    await delete_all(client, former, run.policy.key.label)
    names = ", ".join(entry.name for entry in entries if entry.is_generated)
    message = f"{len(entries)} objects are applied and ready{': ' if names else ''}{names}"
    return Verdict("Done", message, created=wanted)


def _sourced(run: Run, manifest: Unstructured, source: Source) -> SourcedObject:
    """An object with a name. One with `generateName` has another name in each attempt."""
    metadata = cast("dict[str, Any]", manifest["metadata"])
    if "name" in metadata:
        return SourcedObject(manifest, source, is_generated=False)
    text = json.dumps(manifest, sort_keys=True)
    name = unique_name(metadata["generateName"], *run.result.attempt_id, text)
    named = {**manifest, "metadata": {**metadata, "name": name}}
    return SourcedObject(named, source, is_generated=True)


async def _write(run: Run, client: Client, entry: SourcedObject) -> Unstructured:
    if not entry.is_generated:
        return await client.apply(with_labels(entry.manifest, run.labels))
    # Without the label of the policy, neither pruning nor a cleanup deletes it.
    labels = {
        "app.kubernetes.io/managed-by": MANAGER,
        CLUSTER_NAME_LABEL: label_value(run.cluster.name),
    }
    resource = await client.resource_of(entry.manifest)
    return await find_or_create(client, resource, with_labels(entry.manifest, labels))


async def _failure(run: Run, source: Source, live: Unstructured) -> str:
    """Why an object has failed. Empty if it has not, or if that is not known yet."""
    if source.failure is None:
        return ""
    value = await _value(run, Question(source.failure, _VARIABLES), live)
    return "" if isinstance(value, ExpressionError) else str(value or "")


async def _unreadiness(run: Run, source: Source, live: Unstructured) -> str | None:
    if source.until is None:
        return unreadiness(live)
    value = await _value(run, _until(source.until), live)
    if value is True:
        return None
    problem = f" ({redact(str(value))})" if isinstance(value, ExpressionError) else ""
    return f"waits until {source.until}{problem}"


async def _value(run: Run, question: Question, live: Unstructured) -> Any:
    """The value of an expression about an object, or why it has none yet."""
    try:
        owner = run.policy.owner(run.cluster.namespace or "")
        return await SANDBOX.value(owner, question, {"object": live})
    except OverloadError:
        raise
    except ExpressionError as error:
        return error


def _namespace(source: Source) -> str:
    """The namespace of objects that name none."""
    return source.chart.namespace if source.chart else "default"


async def _created_before(run: Run) -> list[CreatedObject]:
    """The objects that this and earlier results of the policy have created in the cluster."""
    labels = {POLICY_LABEL: run.policy.key.label, CLUSTER_NAME_LABEL: label_value(run.cluster.name)}
    results = await run.client.list(LifecycleResult, run.cluster.namespace, labels=labels)
    found: list[CreatedObject] = []
    for result in sorted(results.items, key=lambda result: result.name):
        for entry in result.created if result.is_about(run.cluster.uid) else []:
            if entry not in found:
                found.append(entry)
    return found


def with_labels(manifest: Unstructured, labels: Mapping[str, str]) -> Unstructured:
    metadata = cast("dict[str, Any]", manifest["metadata"])
    merged = {**cast("dict[str, str]", metadata.get("labels") or {}), **labels}
    return {**manifest, "metadata": {**metadata, "labels": merged}}


async def _read(run: Run, sources: Iterable[Source]) -> list[tuple[Unstructured, Source]]:
    """The manifests of all sources, each with its source."""
    topology = run.cluster.spec.topology
    version = run.result.spec.to_version or (topology.version if topology else None) or ""
    owner = run.policy.owner(run.cluster.namespace or "")
    found: list[tuple[Unstructured, Source]] = []
    for source in sources:
        if source.versions is None or in_range(source.versions, version):
            read = await read_source(run.client, owner, run.secrets_namespace, source, version)
            found += [(manifest, source) for manifest in read]
    if len(found) > _MOST_OBJECTS:
        raise SourceError(f"the sources have {len(found)} objects, more than {_MOST_OBJECTS}")
    order = {kind: index for index, kind in enumerate(_FIRST)}
    return sorted(found, key=lambda entry: order.get(entry[0]["kind"], len(order)))


async def placed(
    client: Client, manifests: Sequence[tuple[Unstructured, str]]
) -> list[Unstructured]:
    """Manifests with a namespace for each object that needs one: charts often omit it."""
    scopes = dict(
        _scope_of(manifest)
        for manifest, _ in manifests
        if manifest["kind"] == "CustomResourceDefinition"
    )
    result: list[Unstructured] = []
    for manifest, namespace in manifests:
        metadata = cast("dict[str, Any]", manifest["metadata"])
        if not metadata.get("namespace") and await _is_namespaced(client, manifest, scopes):
            metadata = {**metadata, "namespace": namespace}
        result.append({**manifest, "metadata": metadata})
    return result


def _scope_of(definition: Unstructured) -> tuple[tuple[str, str], bool]:
    spec = cast("dict[str, Any]", definition.get("spec") or {})
    names = cast("dict[str, Any]", spec.get("names") or {})
    return (str(spec.get("group")), str(names.get("kind"))), spec.get("scope") != "Cluster"


async def _is_namespaced(
    client: Client, manifest: Unstructured, scopes: Mapping[tuple[str, str], bool]
) -> bool:
    try:
        return (await client.resource_of(manifest)).namespaced
    except NotServed:
        # Its CRD may be one of the manifests.
        group, _, _ = str(manifest["apiVersion"]).rpartition("/")
        return scopes.get((group, manifest["kind"]), True)


_CONDITIONS: Final = {
    "CustomResourceDefinition": ("Established", "is not established"),
    "APIService": ("Available", "is not available"),
    "Job": ("Complete", "is not complete"),
}


def unreadiness(obj: Unstructured) -> str | None:
    """Why an object is not ready. `None` if it is ready, or if its kind has no such state."""
    status = cast("dict[str, Any]", obj.get("status") or {})
    spec = cast("dict[str, Any]", obj.get("spec") or {})
    kind = str(obj["kind"])
    if kind in _CONDITIONS:
        condition, reason = _CONDITIONS[kind]
        conditions = cast("list[dict[str, str]]", status.get("conditions") or [])
        states = {entry["type"]: entry["status"] for entry in conditions}
        return None if states.get(condition) == "True" else reason
    if kind in {"Deployment", "StatefulSet"}:
        wanted, name = spec.get("replicas", 1), "replicas"
        ready = min(status.get("readyReplicas", 0), status.get("updatedReplicas", 0))
    elif kind == "DaemonSet":
        wanted, name = status.get("desiredNumberScheduled", 0), "nodes"
        ready = min(status.get("numberReady", 0), status.get("updatedNumberScheduled", 0))
    else:
        return None
    if status.get("observedGeneration", 0) < obj["metadata"].get("generation", 0):
        return "has not been rolled out"
    return None if ready >= wanted else f"is ready on {ready} of {wanted} {name}"
