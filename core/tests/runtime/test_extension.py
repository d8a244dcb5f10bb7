from typing import Any

import pytest
from capelin.api import Model
from capelin.runtime import Catalog, Hook, Message, Response, RetryResponse
from capelin.runtime.catalog import AnyHook
from capelin.runtime.extension import Call, Extension, InvalidExtensionError
from capelin.runtime.results import Failure, proceed, retry_after
from capelin.runtime.v1alpha1 import (
    BeforeClusterCreate,
    BeforeClusterCreateRequest,
    BeforeClusterUpgrade,
    CanUpdateMachine,
    Discovery,
    GeneratePatches,
    UpdateMachine,
)


class Settings(Model):
    replicas: int = 1


def test_discovery_describes_the_registered_handlers() -> None:
    ext = Extension("guard")

    @ext.handler(BeforeClusterUpgrade, timeout_seconds=5, failure_policy="Ignore")
    async def storage_is_healthy(call: Call[BeforeClusterUpgrade, None]) -> Response:
        assert call.request.from_kubernetes_version
        return proceed()

    @ext.handler(BeforeClusterCreate, name="quota", settings=Settings)
    def any_name(call: Call[BeforeClusterCreate, Settings]) -> RetryResponse | None:
        return retry_after(call.settings.replicas, "no room")

    ext.check()
    assert ext.discovery().dump() == {
        "status": "Success",
        "handlers": [
            {
                "name": "storage-is-healthy",
                "requestHook": {
                    "apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1",
                    "hook": "BeforeClusterUpgrade",
                },
                "timeoutSeconds": 5,
                "failurePolicy": "Ignore",
            },
            {
                "name": "quota",
                "requestHook": {
                    "apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1",
                    "hook": "BeforeClusterCreate",
                },
                "timeoutSeconds": 10,
                "failurePolicy": "Fail",
            },
        ],
    }
    call: Call[BeforeClusterCreate, Settings] = Call(
        BeforeClusterCreateRequest(cluster_json={}), Settings(replicas=3)
    )
    assert any_name(call) == retry_after(3, "no room")


def problem_of(ext: Extension) -> str:
    with pytest.raises(InvalidExtensionError) as error:
        ext.check()
    return str(error.value)


def problem_with(
    hook: AnyHook = BeforeClusterCreate, name: str = "good", **registration: Any
) -> str:
    """Problem of an extension with one handler with this registration."""
    ext = Extension("guard")
    ext.handler(hook, name=name, **registration)(lambda _: None)
    return problem_of(ext)


@pytest.mark.parametrize("name", ["", "Upper", "under_score", "-dash", "dash-", "a.b", "a" * 64])
def test_a_handler_name_must_be_a_dns_label(name: str) -> None:
    assert f"{name!r} is not a valid handler name" in problem_with(name=name)


@pytest.mark.parametrize("name", ["a", "0", "a" * 63, "a--b"])
def test_any_dns_label_is_a_valid_handler_name(name: str) -> None:
    ext = Extension("guard")
    ext.handler(BeforeClusterCreate, name=name)(lambda _: None)
    ext.check()


@pytest.mark.parametrize("seconds", [-1, 0, 31])
def test_a_timeout_must_be_one_to_thirty_seconds(seconds: int) -> None:
    problem = problem_with(timeout_seconds=seconds)
    assert f"good has a timeout of {seconds} seconds: use 1 to 30" in problem


@pytest.mark.parametrize("seconds", [2.5, 2.0, True, "3", None])
def test_a_timeout_must_be_whole_seconds(seconds: Any) -> None:
    problem = problem_with(timeout_seconds=seconds)
    assert f"good has a timeout of {seconds!r} seconds: use a whole number, 1 to 30" in problem


@pytest.mark.parametrize("seconds", [1, 30])
def test_the_shortest_and_the_longest_timeout_are_valid(seconds: int) -> None:
    ext = Extension("guard")
    ext.handler(BeforeClusterCreate, name="good", timeout_seconds=seconds)(lambda _: None)
    ext.check()


def test_a_failure_policy_must_be_fail_or_ignore() -> None:
    assert "good has the failure policy Maybe: use Fail or Ignore" in problem_with(
        failure_policy="Maybe"
    )


def test_an_extension_cannot_serve_discovery() -> None:
    assert "good serves Discovery, which the server serves itself" in problem_with(hook=Discovery)


def test_handler_names_must_be_unique() -> None:
    ext = Extension("guard")
    ext.handler(BeforeClusterCreate, name="quota")(lambda _: None)
    ext.handler(BeforeClusterUpgrade, name="quota")(lambda _: None)
    assert "2 handlers have the name quota. Use unique names" in problem_of(ext)


@pytest.mark.parametrize("hook", [CanUpdateMachine, UpdateMachine])
def test_in_place_hooks_have_one_handler(hook: type[CanUpdateMachine]) -> None:
    ext = Extension("guard")
    ext.handler(hook, name="a")(lambda _: None)
    ext.check()
    ext.handler(hook, name="b")(lambda _: None)
    assert f"{hook.id.name} has 2 handlers, but allows only one" in problem_of(ext)


ZOO = Catalog()


@ZOO.hook("zoo.example.com/v1", tag="Zoo", summary="Before the gates open")
class BeforeOpening(Hook[Message, Response]):
    """Probe every morning."""


@ZOO.hook("zoo.example.com/v1", tag="Zoo", summary="The animals", singleton=True)
class Animals(Hook[Message, Response]):
    """Probe at any time."""


class Unregistered(Hook[Message, Response]):
    """A hook without a catalog."""


def test_handlers_of_other_singleton_hooks_are_rejected() -> None:
    assert (
        "good serves Animals, whose path has no handler name, so no caller finds it."
        " Register the hook without singleton"
    ) in problem_with(Animals)


def test_settings_need_a_request_with_settings() -> None:
    assert (
        "good has settings, but requests of BeforeOpening do not. Derive Message from Request"
    ) in problem_with(BeforeOpening, settings=Settings)


def test_a_hook_without_a_catalog_is_rejected() -> None:
    assert (
        "good serves Unregistered, which is in no catalog. Register it with"
        ' @CATALOG.hook("GROUP/VERSION", ...)'
    ) in problem_with(Unregistered)


def test_hooks_of_cluster_api_and_of_others_cannot_be_mixed() -> None:
    ext = Extension("guard")
    ext.handler(BeforeOpening, name="gates")(lambda _: None)
    ext.check()
    ext.handler(BeforeClusterCreate, name="quota")(lambda _: None)
    assert (
        "gates serves a hook of zoo.example.com, which Cluster API does not support. Serve it"
        " from a separate extension"
    ) in problem_of(ext)


def test_other_hooks_can_have_several_handlers() -> None:
    ext = Extension("guard")
    ext.handler(GeneratePatches, name="a")(lambda _: None)
    ext.handler(GeneratePatches, name="b")(lambda _: None)
    ext.check()
    assert [handler.name for handler in ext.handlers] == ["a", "b"]


def test_one_error_lists_all_problems() -> None:
    ext = Extension("guard")
    ext.handler(BeforeClusterCreate, name="A", timeout_seconds=99)(lambda _: None)
    problem = problem_of(ext)
    assert problem.startswith("Cluster API would reject the extension guard: ")
    assert "'A' is not a valid handler name" in problem
    assert "timeout of 99" in problem


@pytest.mark.parametrize("seconds", [0, -1, 2**31])
def test_retry_after_rejects_values_out_of_range(seconds: int) -> None:
    with pytest.raises(ValueError, match="cannot retry after"):
        retry_after(seconds, "later")


@pytest.mark.parametrize("seconds", [2.5, 2.0, True, "3", None])
def test_retry_after_needs_whole_seconds(seconds: Any) -> None:
    with pytest.raises(TypeError, match=f"cannot retry after {seconds!r} seconds: use a whole"):
        retry_after(seconds, "later")


def test_results_of_handlers_are_plain_values() -> None:
    assert proceed("fine") == Response(status="Success", message="fine")
    assert str(Failure("no room")) == Failure("no room").message == "no room"
