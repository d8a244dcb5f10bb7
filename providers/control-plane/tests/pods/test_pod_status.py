"""Messages about a pod that is not ready: the same situation gives the same text."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from capelin.api.core import ContainerStatus, Pod
from capelin_control_plane.backends.pods.names import MANAGED_BY_LABEL, Names, owner_of
from capelin_control_plane.backends.pods.pod_status import (
    failure_of,
    instance_status,
    is_ending_server,
)

from .pod_objects import NAMES, objects_of, on_pods

OBJECTS = objects_of(on_pods())


def pod(state: dict[str, Any] | None = None, *, ready: bool = False, **fields: Any) -> Pod:
    template = OBJECTS.api_server.manifest["spec"]["template"]
    container = {"name": "kube-apiserver", "image": "r/kube-apiserver:v1.34.4", **(state or {})}
    return Pod.read(
        {
            "metadata": {"name": "one-x", "namespace": "default", **template["metadata"], **fields},
            "spec": template["spec"],
            "status": {
                "conditions": [{"type": "Ready", "status": str(ready)}],
                "containerStatuses": [container],
            },
        }
    )


def test_a_ready_pod_of_the_desired_template_is_current() -> None:
    status = instance_status(pod(ready=True), OBJECTS.digests)
    assert status is not None
    assert (status.component, status.version) == ("kube-apiserver", "v1.34.4")
    assert (status.ready, status.current, status.failure) == (True, True, "")


def test_a_pod_of_another_template_is_outdated() -> None:
    other = objects_of(on_pods("v1.33.13")).digests
    status = instance_status(pod(ready=True), other)
    assert status is not None
    assert not status.current


def test_a_deleting_pod_does_not_count() -> None:
    going = pod(ready=True, deletionTimestamp="2026-01-01T00:00:00Z")
    assert instance_status(going, OBJECTS.digests) is None


@pytest.mark.parametrize(("minutes", "is_ending"), [(-1, True), (0, True), (2, False)])
def test_server_on_a_lost_node_does_not_end_for_ever(minutes: int, is_ending: bool) -> None:
    due = datetime(2026, 1, 1, tzinfo=UTC)
    going = pod(ready=True, deletionTimestamp=due.isoformat())
    assert is_ending_server(going, due + timedelta(minutes=minutes)) is is_ending
    assert not is_ending_server(pod(ready=True), due)


def test_a_pod_leads_to_its_control_plane() -> None:
    metadata = pod().metadata
    assert owner_of(metadata.labels, metadata.annotations) == NAMES.control_plane
    assert owner_of({}, metadata.annotations) is None
    assert Names("default", "one").labels()[MANAGED_BY_LABEL]


ENDED = {"exitCode": 1, "message": 'E1122 08:00:01.123456       1 run.go:72] "bad" err="no flag"'}


@pytest.mark.parametrize(
    ("state", "failure"),
    [
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, ""),
        ({"state": {"running": {}}}, ""),
        (
            {"state": {"waiting": {"reason": "ErrImagePull", "message": "at 12:00"}}},
            "cannot be started: image r/kube-apiserver:v1.34.4 cannot be pulled",
        ),
        (
            {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": "no key"}}},
            "cannot be started: CreateContainerConfigError: no key",
        ),
        ({"state": {"terminated": ENDED}}, 'ended: "bad" err="no flag"'),
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "20s"}},
                "lastState": {"terminated": ENDED},
            },
            'ended: "bad" err="no flag"',
        ),
        (
            {"lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}},
            "ran out of memory: raise spec.apiServer.resources.memory",
        ),
    ],
)
def test_a_failure_message_omits_changing_details(state: dict[str, Any], failure: str) -> None:
    assert failure_of(pod(state), "kube-apiserver") == failure


def test_a_konnectivity_server_that_cannot_start_is_reported() -> None:
    waiting = pod({"state": {"waiting": {"reason": "PodInitializing"}}})
    waiting.status.init_container_statuses = [
        ContainerStatus.model_validate(
            {
                "name": "konnectivity-server",
                "image": "r/proxy-server:v0.34.0",
                "state": {"waiting": {"reason": "ImagePullBackOff"}},
            }
        )
    ]
    assert failure_of(waiting, "kube-apiserver") == (
        "konnectivity-server cannot be started: image r/proxy-server:v0.34.0 cannot be pulled"
    )
