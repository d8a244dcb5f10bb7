"""The plan of `capelin up` and its early errors."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from capelin.client import Config, Server, User
from capelin.errors import BusyError, InvalidInputError, NotReadyError
from capelin_embedded.binaries import DEFAULT_KUBERNETES
from capelin_embedded.management.attach import Attachment
from capelin_embedded.management.environment import Environment, ExistingServer, Settings
from capelin_embedded.management.providers import OPTIONAL_PROVIDERS
from capelin_embedded.management.status_file import follow_status
from capelin_embedded.management.uninstall import remove_environment
from capelin_embedded.management.up_plan import (
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
from capelin_embedded.management.up_steps import observe

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


def test_the_first_plan_uses_the_default_version() -> None:
    settings = Settings(kubernetes_version=DEFAULT_KUBERNETES, providers=["dev"])
    assert plan_up(UpRequest(providers=("dev",)), Observed("demo")) == (
        FetchPrograms(settings),
        StartSupervisor(settings),
        FetchProviderPrograms(settings),
        WaitUntilUp(),
    )


def test_an_existing_environment_has_the_same_steps() -> None:
    before = Settings(kubernetes_version="v1.35.4", ports={"a/health": 1})
    assert plan_up(UpRequest(), Observed("demo", before)) == (
        FetchPrograms(before),
        StartSupervisor(before),
        FetchProviderPrograms(before),
        WaitUntilUp(),
    )


def test_an_environment_keeps_its_backup_folder() -> None:
    first = desired(None, UpRequest(backup_folder=Path("/mnt/backups")))
    assert first.backup_folder == Path("/mnt/backups")
    assert desired(first, UpRequest()).backup_folder == first.backup_folder
    other = UpRequest(backup_folder=Path("/mnt/other"))
    assert desired(first, other).backup_folder == Path("/mnt/other")


def test_an_existing_api_server_is_checked_before_the_supervisor_starts() -> None:
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


def test_new_providers_are_added_to_existing_ones() -> None:
    first = desired(None, UpRequest(kubernetes_version="v1.36.3", providers=("kubeadm",)))
    second = desired(
        first.model_copy(update={"ports": {"a/health": 1}}),
        UpRequest(kubernetes_version="v1.36.3", providers=("dev",)),
    )
    assert second.providers == ["dev", "kubeadm"]
    assert second.ports == {"a/health": 1}


@pytest.mark.parametrize(("before", "after"), [("v1.33.1", "v1.33.13"), ("v1.36.3", "v1.36.3")])
def test_a_removed_version_becomes_a_later_patch(before: str, after: str) -> None:
    settings = Settings(kubernetes_version=before, ports={"a/health": 1})
    assert desired(settings, UpRequest()) == settings.model_copy(
        update={"kubernetes_version": after}
    )


def test_an_unsupported_version_fails_with_a_hint() -> None:
    with pytest.raises(InvalidInputError, match="clusterctl move"):
        desired(Settings(kubernetes_version="v1.38.0"), UpRequest())


def test_an_older_capelin_rejects_an_environment_of_a_newer_one() -> None:
    before = Settings(kubernetes_version="v1.35.4", capelin="0.10.0")
    with pytest.raises(InvalidInputError, match=r"This is Capelin 0\.9\.0"):
        plan_up(UpRequest(), Observed("demo", before, capelin="0.9.0"))
    steps = plan_up(UpRequest(), Observed("demo", before, capelin="0.11.0"))
    assert FetchPrograms(before.model_copy(update={"capelin": "0.11.0"})) in steps


def test_a_management_cluster_keeps_its_version_or_is_upgraded() -> None:
    settings = Settings(kubernetes_version="v1.35.4", ports={"a/health": 1})
    assert desired(settings, UpRequest()) == settings
    upgraded = settings.model_copy(update={"kubernetes_version": "v1.36.3"})
    assert desired(settings, UpRequest(kubernetes_version="v1.36.3")) == upgraded
    with pytest.raises(InvalidInputError, match=r"demo runs Kubernetes v1\.36\.3") as caught:
        desired(upgraded, UpRequest(kubernetes_version="v1.35.4"))
    assert "cannot downgrade" in caught.value.reason


def test_a_management_cluster_needs_a_version_that_cluster_api_supports() -> None:
    old = UpRequest(kubernetes_version="v1.32.2")
    with pytest.raises(InvalidInputError, match=r"supports v1\.33 to v1\.36 for it") as caught:
        desired(None, old)
    assert "create cluster NAME --kubernetes-version v1.32.2" in caught.value.hint
    attachment = Attachment(CONFIG, EXISTING)
    assert desired(None, old, attachment).kubernetes_version == "v1.32.2"


def test_clusters_may_have_another_version_than_an_existing_api_server() -> None:
    before = Settings(
        kubernetes_version="v1.35.4",
        providers=["dev"],
        existing=EXISTING,
        ports={"cluster-api/health": 1},
    )
    updated = desired(
        before,
        UpRequest(kubernetes_version="v1.36.3", providers=("kubeadm",)),
        Attachment(CONFIG, EXISTING.model_copy(update={"address": "127.0.0.2"})),
    )
    assert updated.kubernetes_version == "v1.36.3"
    assert updated.server_version == "v1.35.0+k3s1"
    assert updated.providers == ["dev", "kubeadm"]
    assert updated.ports == {"cluster-api/health": 1}
    assert updated.existing is not None
    assert updated.existing.address == "127.0.0.2"


def test_an_environment_keeps_its_target() -> None:
    existing, process = UpRequest(target="existing"), UpRequest(target="process")
    assert choose_target(UpRequest(), "demo", None) == "process"
    assert choose_target(existing, "demo", None) == "existing"
    before = Settings(kubernetes_version="v1.36.3", existing=EXISTING)
    assert choose_target(UpRequest(), "demo", before) == "existing"
    assert choose_target(existing, "demo", before) == "existing"
    with pytest.raises(InvalidInputError, match="demo has the target existing"):
        choose_target(process, "demo", before)


def test_a_kubeconfig_needs_the_target_existing() -> None:
    request = UpRequest(kubeconfig=Path("lab.yaml"))
    with pytest.raises(InvalidInputError, match="Add --target existing"):
        choose_target(request, "demo", None)
    assert choose_target(replace(request, target="existing"), "demo", None) == "existing"


def test_an_old_environment_without_a_target_is_a_process(environment: Environment) -> None:
    environment.settings_file.write_text('{"kubernetesVersion": "v1.36.3"}')
    request = UpRequest(target="process")
    assert choose_target(request, "demo", environment.settings()) == "process"


async def test_the_plan_fails_if_a_fixed_port_is_in_use(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev_only, kubeadm = UpRequest(providers=("dev",)), UpRequest(providers=("kubeadm",))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        dev = replace(OPTIONAL_PROVIDERS["dev"][0], fixed_ports=(port,))
        monkeypatch.setitem(OPTIONAL_PROVIDERS, "dev", (dev,))
        with pytest.raises(BusyError, match=f"always uses port {port}"):
            plan_up(dev_only, await observe(environment, dev_only))
        plan_up(kubeadm, await observe(environment, kubeadm))
    plan_up(dev_only, await observe(environment, dev_only))


def test_the_dev_provider_has_a_fixed_port() -> None:
    (dev,) = OPTIONAL_PROVIDERS["dev"]
    assert dev.fixed_ports == (19000,), "a second one on the machine would fail repeatedly"


async def test_follow_status_fails_without_a_supervisor(
    environment: Environment,
) -> None:
    with pytest.raises(NotReadyError, match="Its supervisor does not run"):
        await anext(follow_status(environment))


async def test_remove_environment_removes_an_environment_that_never_ran(
    environment: Environment,
) -> None:
    await remove_environment(environment)
    assert not environment.folder.exists()


@pytest.mark.parametrize(
    ("before", "requested", "expected"),
    [(None, None, False), (None, True, True), (True, None, True), (True, False, False)],
)
def test_an_environment_remembers_whether_it_prefetches(
    before: bool | None, requested: bool | None, *, expected: bool
) -> None:
    settings = (
        None if before is None else Settings(kubernetes_version=DEFAULT_KUBERNETES, prefetch=before)
    )
    steps = plan_up(UpRequest(prefetch=requested), Observed("demo", settings))
    (started,) = (step for step in steps if isinstance(step, StartSupervisor))
    assert started.settings.prefetch is expected
