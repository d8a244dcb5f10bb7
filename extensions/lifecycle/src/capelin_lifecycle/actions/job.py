"""Runs a Job to its end, in the workload or in the management cluster."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, cast

from capelin.api import Resource, Unstructured
from capelin.client import AlreadyExists, Client, ClientError, Invalid
from capelin.controller import redact

from capelin_lifecycle.actions.action import Cleanup, Run
from capelin_lifecycle.actions.workload import (
    created_object,
    delete_all,
    delete_own,
    find_own,
    unique_name,
    workload_client,
)
from capelin_lifecycle.api.actions import Job
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.verdict import SLOW_SECONDS, Verdict, failed, waiting

JOBS: Final = Resource("batch", "v1", "Job", "jobs")
EVENTS: Final = Resource("", "v1", "Event", "events")
PODS: Final = Resource("", "v1", "Pod", "pods")
_LOG_BYTES: Final = 900
_MAX_LOG_BYTES: Final = 1 << 20


def job_problems(policy: KnownPolicy) -> list[str]:
    """A template that no API server would accept."""
    job = policy.spec.action.job
    spec: Any = job.template if job else {}
    for key in ("template", "spec", "containers"):
        spec = cast("dict[str, Any]", spec).get(key) if isinstance(spec, dict) else None
    if not spec:
        return ["template is the spec of a Job: it needs template.spec.containers"]
    return []


class JobRunner:
    keeps_up = False

    async def reconcile(self, run: Run) -> Verdict:
        job = run.policy.spec.action.job or Job(template={})
        async with _target(run, job.target) as client:
            manifest = job_manifest(run, job)
            metadata = manifest["metadata"]
            name = f"Job {metadata['namespace']}/{metadata['name']}"
            own = created_object(manifest, job.target)
            created = [*(entry for entry in run.created if entry != own), own]
            if own not in run.created:
                started = await self._start(run, client, manifest)
                if started is not None:
                    is_running = started.phase == "Running"
                    return replace(started, created=created if is_running else None)
            live = await client.find(JOBS, metadata["name"], metadata["namespace"])
            if live is None:
                return failed(f"Job {metadata['name']} was deleted before its end was observed")
            match finished(live):
                case None:
                    message = f"{name} {await _progress(client, live)}"
                    return Verdict("Running", message, SLOW_SECONDS, created)
                case "":
                    log = await _log_tail(client, metadata, job.log_lines)
                    return Verdict("Done", f"{name} is complete{log}", created=created)
                case reason:
                    log = await _log_tail(client, metadata, job.log_lines)
                    return Verdict("Failed", f"{name} failed: {reason}{log}", created=created)

    async def _start(self, run: Run, client: Client, manifest: Unstructured) -> Verdict | None:
        """Create the Job. Returns None if an earlier step died before its record was written."""
        if (former := await self._end_former(run)) is not None:
            return former
        try:
            await client.create(manifest, resource=JOBS)
        except AlreadyExists:
            return None
        except Invalid as error:
            return failed(f"the Job was rejected: {redact(str(error))}")
        metadata = manifest["metadata"]
        name = f"Job {metadata['namespace']}/{metadata['name']}"
        return Verdict("Running", f"{name} runs", SLOW_SECONDS)

    async def _end_former(self, run: Run) -> Verdict | None:
        """Delete the Job of the last attempt if it runs. Returns why the new one has to wait."""
        for entry in run.created:
            async with _target(run, entry.target) as client:
                former = await find_own(client, entry, run.policy.key.label)
                if former is not None and finished(former.manifest) is None:
                    await delete_own(client, former)
                    if await find_own(client, entry, run.policy.key.label) is not None:
                        return waiting(f"the Job {entry.name} of the last attempt is being deleted")
        return None

    async def cleanup(self, run: Cleanup) -> None:
        targets = ("Workload", "Management") if run.has_workload else ("Management",)
        for target in targets:
            entries = [entry for entry in run.result.created if entry.target == target]
            if entries:
                async with _target(run, target) as client:
                    await delete_all(client, entries, run.policy_label)


def job_manifest(run: Run, job: Job) -> Unstructured:
    """The Job of a result. It ends when the policy's time is over, if not earlier."""
    spec = dict(job.template)
    # A Job that deletes itself would have no result. It goes with the result or the policy.
    spec.pop("ttlSecondsAfterFinished", None)
    spec.setdefault("activeDeadlineSeconds", max(1, int(run.policy.spec.timeout.total_seconds())))
    spec.setdefault("backoffLimit", 0)
    namespace = job.namespace if job.target == "Workload" else run.cluster.namespace
    name = unique_name(run.policy.name, *run.result.attempt_id)
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": name, "namespace": namespace, "labels": run.labels},
        "spec": spec,
    }


def finished(job: Unstructured) -> str | None:
    """Why the Job failed. Empty when it is complete, `None` while it runs."""
    status = cast("dict[str, Any]", job.get("status") or {})
    for condition in cast("list[dict[str, str]]", status.get("conditions") or []):
        if condition.get("status") == "True":
            if condition.get("type") == "Complete":
                return ""
            if condition.get("type") == "Failed":
                return condition.get("message") or condition.get("reason") or "unknown reason"
    return None


@asynccontextmanager
async def _target(run: Run | Cleanup, target: str) -> AsyncGenerator[Client]:
    if target == "Management":
        yield run.client
    else:
        async with workload_client(run) as client:
            yield client


async def _progress(client: Client, job: Unstructured) -> str:
    """The state of an unfinished Job: it runs, or a warning explains why it has no pods."""
    status = cast("dict[str, Any]", job.get("status") or {})
    uid = job["metadata"].get("uid")
    if status.get("active") or uid is None:
        return "runs"
    fields = {"involvedObject.uid": uid, "type": "Warning"}
    try:
        events = (await client.list(EVENTS, job["metadata"]["namespace"], fields=fields)).items
    except ClientError:
        return "runs"
    if not events:
        return "runs"
    last = max(events, key=_time_of)
    return f"has no pods: {redact(str(last.get('message') or last.get('reason')))}"


def _time_of(event: Unstructured) -> str:
    """Time of an event's last occurrence, by the API that reported it."""
    series = cast("dict[str, Any]", event.get("series") or {})
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp", "")
    )


async def _log_tail(client: Client, metadata: Unstructured, lines: int) -> str:
    """The last lines of the log of the newest pod. Empty if they cannot be read."""
    if not lines:
        return ""
    labels = {"batch.kubernetes.io/job-name": metadata["name"]}
    try:
        pods = (await client.list(PODS, metadata["namespace"], labels=labels)).items
        if not pods:
            return ""
        pod = max(pods, key=lambda pod: pod["metadata"]["creationTimestamp"])
        text = await client.request(
            "GET",
            PODS.path(metadata["namespace"], pod["metadata"]["name"], "log"),
            parameters={
                "container": pod["spec"]["containers"][0]["name"],
                "tailLines": str(lines),
            },
            max_bytes=_MAX_LOG_BYTES,
        )
    except ClientError:
        return ""
    tail = redact(str(text)).strip()[-_LOG_BYTES:]
    return f". Its log ends with:\n{tail}" if tail else ""
