"""The plan of `capelin up`, and what is refused before anything starts."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from capelin.client import Config, Server, User
from capelin.embedded.binaries import TESTED_KUBERNETES
from capelin.embedded.management.attach import Attachment
from capelin.embedded.management.environment import Environment, ExistingServer, Settings
from capelin.embedded.management.providers import OPTIONAL_PROVIDERS
from capelin.embedded.management.status_file import follow_status
from capelin.embedded.management.uninstall import remove_environment
from capelin.embedded.management.up_plan import (
    CheckVacant,
    FetchPrograms,
    FetchProviderPrograms,
    Observed,
    StartSupervisor,
    UpRequest,
    WaitUntilUp,
    choose_target,
    plan_up,
)
from capelin.embedded.management.up_steps import observe
from capelin.errors import BusyError, InvalidInputError, NotReadyError

EXISTING = ExistingServer(cluster="uid", version="v1.35.0+k3s1", address="127.0.0.1", mark="demo.1")
CONFIG = Config(Server("https://127.0.0.1:6443"), User())


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    environment = Environment(tmp_path / "demo")
    environment.make_folders()
    return environment


def desired(
    before: Settings | None, request: UpRequest, attachment: Attachment | None = None
) -> Settings:
    """The settings with which the plan starts a supervisor."""
    steps = plan_up(request, Observed("demo", before, attachment))
    return next(step.settings for step in steps if isinstance(step, StartSupervisor))


def test_the_plan_from_nothing_takes_a_version_that_can_be_upgraded() -> None:
    settings = Settings(kubernetes_version=TESTED_KUBERNETES[0], providers=["dev"])
    assert plan_up(UpRequest(providers=("dev",)), Observed("demo")) == (
        FetchPrograms(settings),
        StartSupervisor(settings),
        FetchProviderPrograms(settings),
        WaitUntilUp(),
    )


def test_an_environment_that_is_there_goes_through_the_same_steps() -> None:
    before = Settings(kubernetes_version="v1.33.13", ports={"a/health": 1})
    assert plan_up(UpRequest(), Observed("demo", before)) == (
        FetchPrograms(before),
        StartSupervisor(before),
        FetchProviderPrograms(before),
        WaitUntilUp(),
    )


def test_an_existing_api_server_is_checked_before_anything_is_started() -> None:
    attachment = Attachment(CONFIG, EXISTING)
    steps = plan_up(UpRequest(providers=("dev",)), Observed("demo", None, attachment))
    assert [type(step) for step in steps] == [
        FetchPrograms,
        CheckVacant,
        StartSupervisor,
        FetchProviderPrograms,
        WaitUntilUp,
    ]
    assert steps[1] == CheckVacant(
        attachment, desired(None, UpRequest(providers=("dev",)), attachment)
    )
    assert isinstance(steps[2], StartSupervisor)
    assert steps[2].config is CONFIG


def test_providers_are_added_to_those_that_there_are() -> None:
    first = desired(None, UpRequest(kubernetes_version="v1.34.4", providers=("kubeadm",)))
    second = desired(
        first.model_copy(update={"ports": {"a/health": 1}}),
        UpRequest(kubernetes_version="v1.34.4", providers=("dev",)),
    )
    assert second.providers == ["dev", "kubeadm"]
    assert second.ports == {"a/health": 1}


@pytest.mark.parametrize(("before", "after"), [("v1.33.1", "v1.33.13"), ("v1.34.4", "v1.34.4")])
def test_removed_version_becomes_a_later_patch(before: str, after: str) -> None:
    settings = Settings(kubernetes_version=before, ports={"a/health": 1})
    assert desired(settings, UpRequest()) == settings.model_copy(
        update={"kubernetes_version": after}
    )


def test_an_environment_that_nothing_can_follow_says_how_to_go_on() -> None:
    with pytest.raises(InvalidInputError, match="clusterctl move"):
        desired(Settings(kubernetes_version="v1.38.0"), UpRequest())


def test_an_older_capelin_does_not_touch_what_a_newer_one_brought_up() -> None:
    before = Settings(kubernetes_version="v1.33.13", capelin="0.10.0")
    with pytest.raises(InvalidInputError, match=r"This is Capelin 0\.9\.0"):
        plan_up(UpRequest(), Observed("demo", before, capelin="0.9.0"))
    steps = plan_up(UpRequest(), Observed("demo", before, capelin="0.11.0"))
    assert FetchPrograms(before.model_copy(update={"capelin": "0.11.0"})) in steps


def test_a_management_cluster_keeps_its_version() -> None:
    with pytest.raises(InvalidInputError, match=r"demo runs Kubernetes v1\.33\.13"):
        desired(Settings(kubernetes_version="v1.33.13"), UpRequest(kubernetes_version="v1.34.4"))


def test_a_management_cluster_has_a_version_that_cluster_api_supports() -> None:
    old = UpRequest(kubernetes_version="v1.32.2")
    with pytest.raises(InvalidInputError, match=r"supports v1\.33 to v1\.36 for it") as caught:
        desired(None, old)
    assert "create cluster NAME --kubernetes-version v1.32.2" in caught.value.hint
    attachment = Attachment(CONFIG, EXISTING)
    assert desired(None, old, attachment).kubernetes_version == "v1.32.2"


def test_the_clusters_of_an_existing_api_server_need_not_have_its_version() -> None:
    before = Settings(
        kubernetes_version="v1.33.13",
        providers=["dev"],
        existing=EXISTING,
        ports={"cluster-api/health": 1},
    )
    now = desired(
        before,
        UpRequest(kubernetes_version="v1.34.4", providers=("kubeadm",)),
        Attachment(CONFIG, EXISTING.model_copy(update={"address": "127.0.0.2"})),
    )
    assert now.kubernetes_version == "v1.34.4"
    assert now.server_version == "v1.35.0+k3s1"
    assert now.providers == ["dev", "kubeadm"]
    assert now.ports == {"cluster-api/health": 1}
    assert now.existing is not None
    assert now.existing.address == "127.0.0.2"


def test_the_target_is_remembered() -> None:
    existing, process = UpRequest(target="existing"), UpRequest(target="process")
    assert choose_target(UpRequest(), "demo", None) == "process"
    assert choose_target(existing, "demo", None) == "existing"
    before = Settings(kubernetes_version="v1.34.4", existing=EXISTING)
    assert choose_target(UpRequest(), "demo", before) == "existing"
    assert choose_target(existing, "demo", before) == "existing"
    with pytest.raises(InvalidInputError, match="demo has the target existing"):
        choose_target(process, "demo", before)


def test_a_kubeconfig_is_for_an_existing_api_server_only() -> None:
    request = UpRequest(kubeconfig=Path("lab.yaml"))
    with pytest.raises(InvalidInputError, match="Add --target existing"):
        choose_target(request, "demo", None)
    assert choose_target(replace(request, target="existing"), "demo", None) == "existing"


def test_an_environment_of_before_there_were_targets_is_a_process(environment: Environment) -> None:
    environment.settings_file.write_text('{"kubernetesVersion": "v1.34.4"}')
    request = UpRequest(target="process")
    assert choose_target(request, "demo", environment.settings()) == "process"


async def test_port_is_taken(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    dev_only, kubeadm = UpRequest(providers=("dev",)), UpRequest(providers=("kubeadm",))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        dev = replace(OPTIONAL_PROVIDERS["dev"][0], fixed_ports=(port,))
        monkeypatch.setitem(OPTIONAL_PROVIDERS, "dev", (dev,))
        with pytest.raises(BusyError, match=f"always uses port {port}"):
            plan_up(dev_only, await observe(environment, dev_only))
        plan_up(kubeadm, await observe(environment, kubeadm))
    plan_up(dev_only, await observe(environment, dev_only))


def test_the_port_of_the_dev_provider_cannot_be_chosen() -> None:
    (dev,) = OPTIONAL_PROVIDERS["dev"]
    assert dev.fixed_ports == (19000,), "a second one on the machine would fail again and again"


async def test_environment_needs_a_supervisor(
    environment: Environment,
) -> None:
    with pytest.raises(NotReadyError, match="Its supervisor does not run"):
        await anext(follow_status(environment))


async def test_an_environment_that_never_ran_is_removed_too(environment: Environment) -> None:
    await remove_environment(environment)
    assert not environment.folder.exists()
