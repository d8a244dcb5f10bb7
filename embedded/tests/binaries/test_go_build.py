import asyncio
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from capelin_embedded.binaries import COMPONENTS, Binaries, NotObtainableError
from capelin_embedded.binaries.cache import Cache
from capelin_embedded.binaries.catalog import (
    CLUSTER_API,
    KUBERNETES,
    Component,
    ComponentVersion,
    Platform,
    Project,
    parse_component,
)
from capelin_embedded.binaries.go import (
    BuildProgress,
    build,
    find_go,
    installed_go,
    is_new_enough,
    needed_go,
    newest_needed_go,
    split_batches,
)
from capelin_embedded.binaries.module_source import Module, folder_hash

if TYPE_CHECKING:
    from .conftest import FakeGo, RecordedProgress, Registry

    Making = Callable[..., Binaries]


async def failure_of(made: Binaries, name: str = "etcd") -> str:
    with pytest.raises(NotObtainableError) as failure:
        await made.path(name)
    return dict(failure.value.attempts)["go build"]


async def test_a_program_is_built_once(
    binaries: "Making", go: "FakeGo", progress: "RecordedProgress"
) -> None:
    made = binaries(go=go)
    file = await made.path("etcd")
    assert "echo go.etcd.io/etcd/server/v3" in file.read_text()
    assert await binaries(go=go).path("etcd") == file
    assert len(go.builds()) == 1
    assert progress.events[-2:] == [
        ("started", "etcd v3.6.8", "go build"),
        ("finished", "etcd v3.6.8", "go build"),
    ]
    assert progress.amounts == [(1, None, "packages")]
    (entry,) = made.cache.entries()
    assert entry.source == "go.etcd.io/etcd/server/v3, Go 1.26.8"


async def test_a_component_of_another_package_can_be_built(
    binaries: "Making", go: "FakeGo", tmp_path: Path
) -> None:
    files = tmp_path / "shoal" / "v1.0.0"
    files.mkdir(parents=True)
    (files / "go.mod").write_text("module capelin/shoal\n\ngo 1.21\n")
    (files / "go.sum").touch()
    project = Project(
        "shoal", "Shoal", sources={}, stamps={}, modules=tmp_path, tags=("small", "plain")
    )
    pack = Component("pack", project, "example.org/shoal/cmd/pack")
    made = binaries(go=go)
    fetched = await made.fetch(["etcd", pack])
    assert {name: binary.version for name, binary in fetched.items()} == {
        "etcd": "v3.6.8",
        "pack": "v1.0.0",
    }
    assert await made.path(pack) == fetched["pack"].path
    assert await made.has([pack])
    tagged = [build for build in go.builds() if "-tags=small,plain" in build]
    assert len(tagged) == 1
    assert "example.org/shoal/cmd/pack" in tagged[0]


async def test_a_build_reports_compiled_and_total_packages(
    binaries: "Making", go: "FakeGo", progress: "RecordedProgress"
) -> None:
    go.answers_list_with(
        "echo go: downloading go.etcd.io/etcd/server/v3 v3.6.8 >&2\n"
        "echo go.etcd.io/etcd/server/v3\n"
        "echo go.etcd.io/etcd/etcdctl/v3\n"
    )
    await binaries(go=go).fetch(["etcd", "etcdctl"])
    assert progress.amounts == [(1, None, "modules"), (1, 2, "packages"), (2, 2, "packages")]


async def test_a_build_without_a_list_of_packages_reports_compiled_ones(
    binaries: "Making", go: "FakeGo", progress: "RecordedProgress"
) -> None:
    go.answers_list_with("echo no network >&2; exit 1")
    await binaries(go=go).path("etcd")
    assert progress.amounts == [(1, None, "packages")]


async def test_programs_of_one_version_share_a_build(binaries: "Making", go: "FakeGo") -> None:
    names = [name for name, c in COMPONENTS.items() if c.project is KUBERNETES]
    fetched = await binaries(go=go).fetch(names)
    (build,) = go.builds()
    assert all(f" k8s.io/kubernetes/cmd/{name}" in build for name in names)
    for name, binary in fetched.items():
        assert binary.path.name == name
        assert binary.version == "v1.36.3"
        assert f"echo k8s.io/kubernetes/cmd/{name}\n" in binary.path.read_text()


async def test_the_largest_project_is_built_last(binaries: "Making", go: "FakeGo") -> None:
    await binaries(go=go).fetch(["kube-apiserver", "kubectl", "etcd", "kwok"])
    assert "kube-apiserver" in go.builds()[-1]
    assert len(go.builds()) == 3


async def test_a_failed_build_prevents_longer_builds(binaries: "Making", go: "FakeGo") -> None:
    go.fails_with("no such module")
    with pytest.raises(NotObtainableError, match="kwok"):
        await binaries(go=go).fetch(["kube-apiserver", "kubectl", "kwok"])
    assert len(go.builds()) == 1


async def test_has_builds_nothing(binaries: "Making", go: "FakeGo") -> None:
    made = binaries(go=go)
    assert not await made.has(["etcd"])
    assert not go.builds()
    await made.fetch(["etcd"])
    assert await made.has(["etcd", "etcd"])
    assert not await made.has(["etcd", "kwok"])


async def test_two_versions_have_separate_builds(binaries: "Making", go: "FakeGo") -> None:
    await binaries(go=go).fetch(["kubectl", "kubectl@v1.35.4", "kubectl@v1.36.3"])
    stamps = [re.findall(r"gitVersion=(\S+)", build) for build in go.builds()]
    assert sorted(stamps) == [["v1.35.4"], ["v1.36.3"]]


async def test_only_missing_programs_are_built(binaries: "Making", go: "FakeGo") -> None:
    await binaries(go=go).path("etcd")
    await binaries(go=go).fetch(["etcd", "etcdctl"])
    assert [build.split()[-1] for build in go.builds()] == [
        "go.etcd.io/etcd/server/v3",
        "go.etcd.io/etcd/etcdctl/v3",
    ]


async def test_packages_with_the_same_name_have_separate_builds(
    binaries: "Making", go: "FakeGo"
) -> None:
    names = ["kubeadm-bootstrap-controller", "kubeadm-control-plane-controller", "clusterctl"]
    fetched = await binaries(go=go).fetch(names)
    packages = ["bootstrap/kubeadm", "controlplane/kubeadm", "cmd/clusterctl"]
    for binary, package in zip(fetched.values(), packages, strict=True):
        assert f"echo sigs.k8s.io/cluster-api/{package}\n" in binary.path.read_text()
    assert len(go.builds()) == 2


def test_a_batch_contains_each_name_once() -> None:
    names = ("kubeadm-bootstrap-controller", "clusterctl", "kubeadm-control-plane-controller")
    bootstrap, clusterctl, control_plane = map(parse_component, names)
    batches = split_batches([bootstrap, clusterctl, control_plane])
    assert batches == [[bootstrap, clusterctl], [control_plane]]


@pytest.mark.parametrize(
    ("name", "stamps"),
    [
        (
            "kube-apiserver@v1.35.4",
            (
                "-X k8s.io/component-base/version.gitVersion=v1.35.4"
                " -X k8s.io/component-base/version.gitMajor=1"
                " -X k8s.io/component-base/version.gitMinor=35"
            ),
        ),
        (
            "clusterctl",
            (
                "-X sigs.k8s.io/cluster-api/version.gitVersion=v1.14.2"
                " -X sigs.k8s.io/cluster-api/version.gitMajor=1"
                " -X sigs.k8s.io/cluster-api/version.gitMinor=14"
            ),
        ),
        ("etcd", ""),
    ],
)
async def test_a_build_has_the_version_stamps_of_its_project(
    name: str, stamps: str, binaries: "Making", go: "FakeGo"
) -> None:
    await binaries(go=go).fetch([name])
    (build,) = go.builds()
    flags = f"-ldflags -s -w {stamps}".rstrip()
    assert build.startswith(f"build -v -mod=readonly -trimpath -buildvcs=false {flags} -o /")


async def test_a_build_overrides_go_settings_of_the_user(binaries: "Making", go: "FakeGo") -> None:
    theirs = {
        "GOFLAGS": "-mod=vendor",
        "GOOS": "windows",
        "GOARCH": "arm",
        "GOWORK": "/their/go.work",
        "GO111MODULE": "off",
        "CGO_ENABLED": "1",
        "GOPROXY": "https://proxy.example",
        "GOTMPDIR": "/full",
    }
    await binaries(go=go, **theirs).path("etcd")
    environment = go.environment()
    assert environment["GOFLAGS"] == "-mod=readonly"
    assert (environment["GOOS"], environment["GO111MODULE"], environment["GOWORK"]) == (
        "linux",
        "on",
        "off",
    )
    assert (environment["GOARCH"] != "arm", environment["CGO_ENABLED"]) == (True, "0")
    assert environment["GOPROXY"] == "https://proxy.example"
    assert "/cache/work/etcd-v3.6.8~" in environment["GOTMPDIR"]


async def test_a_recent_go_uses_its_local_toolchain(binaries: "Making", go: "FakeGo") -> None:
    await binaries(go=go, GOTOOLCHAIN="go1.99.0").path("etcd")
    assert go.environment()["GOTOOLCHAIN"] == "local"


@pytest.mark.parametrize(
    ("version", "setting"),
    [("go1.23.4", "local"), ("go1.20.14", "auto"), ("go1.23.4", "go1.22.0")],
)
async def test_an_old_go_fails_with_the_required_version(
    version: str, setting: str, binaries: "Making", go: "FakeGo", tmp_path: Path
) -> None:
    go.is_version(version)
    go.has_toolchain_setting(setting)
    assert await failure_of(binaries(go=go)) == (
        f"{tmp_path}/go/bin/go is Go {version[2:]}, and etcd v3.6.8 needs Go 1.24.0 or later"
        " (GOTOOLCHAIN=auto would let Go 1.21 and later fetch that itself)"
    )
    assert not go.builds()


@pytest.mark.parametrize("setting", ["auto", "go1.23.4+auto", "path"])
async def test_an_old_go_with_toolchains_reports_the_download(
    setting: str, binaries: "Making", go: "FakeGo", progress: "RecordedProgress"
) -> None:
    go.is_version("go1.23.4")
    go.has_toolchain_setting(setting)
    await binaries(go=go, GOTOOLCHAIN=setting).path("etcd")
    assert go.environment()["GOTOOLCHAIN"] == setting
    ((_, what, way, message),) = [event for event in progress.events if event[0] == "noted"]
    assert (what, way) == ("etcd v3.6.8", "go build")
    assert message.endswith("go is Go 1.23.4 and fetches Go 1.24.0, which etcd v3.6.8 needs")


@pytest.mark.parametrize("version", ["go1.24", "go1.26rc1", "go1.27.0 X:nodwarf5", "go1.100.0"])
async def test_go_versions_are_numbers(version: str, binaries: "Making", go: "FakeGo") -> None:
    go.is_version(version)
    go.has_toolchain_setting("local")
    assert (await binaries(go=go).path("etcd")).exists()


async def test_a_failed_build_reports_only_the_errors_of_go(
    binaries: "Making", go: "FakeGo", progress: "RecordedProgress"
) -> None:
    go.fails_with(
        "go: downloading go.etcd.io/etcd/server/v3 v3.6.8\n"
        "golang.org/x/sys/unix\n"
        "verifying go.etcd.io/etcd/server/v3@v3.6.8: checksum mismatch\n"
        "SECURITY ERROR\n"
    )
    reason = (
        "`go build` failed: verifying go.etcd.io/etcd/server/v3@v3.6.8: checksum mismatch\n"
        "    SECURITY ERROR"
    )
    assert await failure_of(made := binaries(go=go)) == reason
    assert progress.events[-1] == ("failed", "etcd v3.6.8", "go build", reason)
    assert made.cache.entries() == []
    assert list((made.cache.root / "work").iterdir()) == []


async def test_a_build_without_a_result_fails(
    binaries: "Making", go: "FakeGo", tmp_path: Path
) -> None:
    script = tmp_path / "go" / "bin" / "go"
    script.write_text(script.read_text().replace("for package in $packages", "for package in"))
    assert await failure_of(binaries(go=go)) == "`go build` succeeded without creating etcd v3.6.8"


async def test_a_go_that_ignores_ctrl_c_is_killed(
    binaries: "Making", go: "FakeGo", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capelin_embedded.binaries.go._GRACE_SECONDS", 0.1)
    go.ignores_interrupts()
    go.hold()
    task = asyncio.create_task(binaries(go=go).path("etcd"))
    pid = await go.pid()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_the_error_lists_all_attempted_sources(
    binaries: "Making", registry: "Registry", tmp_path: Path
) -> None:
    registry.url = "http://127.0.0.1:1"
    with pytest.raises(NotObtainableError) as failure:
        await binaries().path("kube-apiserver")
    assert str(failure.value) == (
        "kube-apiserver v1.36.3 is not available. Attempts:\n"
        "  folder: none is set (CAPELIN_BINARIES and KUBEBUILDER_ASSETS are not set)\n"
        f"  cache: {tmp_path}/cache does not hold it\n"
        "  image registry.k8s.io/kube-apiserver:v1.36.3: 127.0.0.1 does not answer"
        " (connection refused)\n"
        "  go build: PATH has no go command\n"
        "Install Go 1.26.0 or later (https://go.dev/dl) and allow access to a Go module proxy,"
        " allow access to registry.k8s.io, or set a folder that contains kube-apiserver:"
        " CAPELIN_BINARIES=FOLDER"
    )


async def test_a_program_without_an_image_needs_go(binaries: "Making") -> None:
    with pytest.raises(NotObtainableError) as failure:
        await binaries().path("kubeadm")
    assert ("image", "no official image contains kubeadm") in failure.value.attempts
    assert "registry" not in str(failure.value)


async def test_a_full_disk_is_reported(
    binaries: "Making", go: "FakeGo", monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "/cache/work/go.mod")

    monkeypatch.setattr("capelin_embedded.binaries.go.shutil.copy", full)
    assert await failure_of(binaries(go=go)) == "/cache/work/go.mod: No space left on device"


@pytest.mark.timeout(600)
@pytest.mark.integration
async def test_a_real_go_builds_etcdctl() -> None:
    """Uses the cache of the user, so that later runs are fast."""
    binaries = Binaries()
    fetched = await binaries.fetch(["etcdctl@v3.6.8"])
    check = Binaries(folders=[fetched["etcdctl@v3.6.8"].path.parent])
    assert (await check.fetch(["etcdctl@v3.6.8"]))["etcdctl@v3.6.8"].version == "v3.6.8"


@pytest.mark.integration
@pytest.mark.representative
async def test_folder_hash_agrees_with_a_real_go() -> None:
    folder = await Binaries().module_dir("cluster-api/test")
    files = CLUSTER_API.module_files("v1.14.2")
    module = Module("sigs.k8s.io/cluster-api/test", "v1.14.2", files)
    assert folder_hash(folder, module) == module.pinned


@pytest.mark.timeout(600)
@pytest.mark.integration
async def test_a_real_go_compiles_the_counted_packages(
    tmp_path: Path,
) -> None:
    files = tmp_path / "shoal" / "v1.0.0"
    files.mkdir(parents=True)
    (files / "go.mod").write_text("module example.com/shoal\n\ngo 1.21\n")
    (files / "go.sum").touch()
    project = Project("shoal", "Shoal", sources={}, stamps={}, modules=tmp_path)
    program = ComponentVersion(Component("pack", project, "cmd/pack"), "v1.0.0")
    cache = Cache(tmp_path / "cache")
    environment = {**os.environ, "GOCACHE": str(tmp_path / "go-cache"), "GOTOOLCHAIN": "local"}
    toolchain = await find_go(
        files, what="Shoal", environment=environment, platform=Platform.current(), note=print
    )
    reports: list[BuildProgress] = []
    async with cache.building("shoal", lambda: None) as build_dir:
        await build(toolchain, [program], build_dir, reports.append)
    total = reports[-1].total
    assert [(report.done, report.total) for report in reports] == [
        (number + 1, total) for number in range(len(reports))
    ]
    assert total == len(reports) > 1
    async with cache.building("shoal", lambda: None) as build_dir:
        await build(toolchain, [program], build_dir, reports.append)
    assert len(reports) == total, "all packages are in Go's build cache"


def test_installed_go_returns_the_version_on_path(go: "FakeGo", tmp_path: Path) -> None:
    assert installed_go({"PATH": go.path}) == "1.26.8"
    assert installed_go({"PATH": str(tmp_path)}) is None


def test_the_newest_required_go_builds_all_programs() -> None:
    needed = newest_needed_go()
    assert all(
        is_new_enough(needed, needed_go(component.project.module_files(version)))
        for component in COMPONENTS.values()
        for version in component.project.versions
    )
