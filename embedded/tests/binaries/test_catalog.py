import re
from pathlib import Path

import pytest
from capelin.contract import upgrade_problem
from capelin_embedded.binaries import (
    COMPONENTS,
    DEFAULT_KUBERNETES,
    KNOWN_KUBERNETES,
    TESTED_KUBERNETES,
    BinariesError,
    check_kubernetes_version,
)
from capelin_embedded.binaries.catalog import PROJECTS, Platform, Project, parse_component
from capelin_embedded.binaries.go import needed_go

PINNED = {"etcd"}
"""The projects whose images have a digest here."""


def test_known_versions_contain_every_supported_minor_in_order() -> None:
    minors = [version.rpartition(".")[0] for version in KNOWN_KUBERNETES]
    assert minors == ["v1.31", "v1.32", "v1.33", "v1.34", "v1.35", "v1.36"]


def test_tested_versions_are_known_and_consecutive() -> None:
    assert {*TESTED_KUBERNETES} < {*KNOWN_KUBERNETES}
    assert TESTED_KUBERNETES[-1] == DEFAULT_KUBERNETES
    assert upgrade_problem(TESTED_KUBERNETES[0], DEFAULT_KUBERNETES) is None


def test_versions_have_numerical_order(tmp_path: Path) -> None:
    for version in ("v1.9.1", "v1.10.0", "v1.9.10"):
        (tmp_path / "some" / version).mkdir(parents=True)
    assert Project("some", "Some", sources={}, stamps={}, modules=tmp_path).versions == (
        "v1.9.1",
        "v1.9.10",
        "v1.10.0",
    )


def test_the_error_for_an_unknown_kubernetes_version_lists_known_ones() -> None:
    check_kubernetes_version("v1.34.4")
    words = "v1.36.9 is not a Kubernetes version that Capelin provides (known: "
    words += ", ".join(KNOWN_KUBERNETES) + ")"
    with pytest.raises(BinariesError, match=f"^{re.escape(words)}$"):
        check_kubernetes_version("v1.36.9")


def test_a_name_without_a_version_means_the_default_version() -> None:
    newest, requested = (
        parse_component("kube-apiserver"),
        parse_component("kube-apiserver@v1.33.13"),
    )
    assert (newest.version, newest.explicit) == (DEFAULT_KUBERNETES, False)
    assert (requested.version, requested.explicit) == ("v1.33.13", True)


def test_the_error_for_an_unknown_program_lists_known_ones() -> None:
    with pytest.raises(
        BinariesError, match=r"'kubelet' is not a binary .* \(known: .*etcd, etcdctl"
    ):
        parse_component("kubelet")


@pytest.mark.parametrize("project", PROJECTS.values(), ids=lambda project: project.name)
def test_every_version_has_module_files_with_its_pin(project: Project) -> None:
    assert project.versions
    for version in project.versions:
        files = project.module_files(version)
        packages = [c.package for c in COMPONENTS.values() if c.project is project]
        assert f" {version}\n" in (files / "go.mod").read_text()
        assert all(f'"{package}"' in (files / "tools.go").read_text() for package in packages)
        assert needed_go(files) >= "1.22"


@pytest.mark.parametrize("project", PROJECTS.values(), ids=lambda project: project.name)
def test_every_image_of_a_pinned_project_has_a_digest(project: Project) -> None:
    for version in project.versions:
        pulled = {
            component.image.reference_of(version)
            for component in COMPONENTS.values()
            if component.project is project and component.image is not None
        }
        pinned = project.image_digests(version)
        # For other projects, Capelin records the digest that the registry sends first.
        assert pinned.keys() == (pulled if project.name in PINNED else set())
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in pinned.values())


@pytest.mark.parametrize(
    ("machine", "architecture"), [("x86_64", "amd64"), ("aarch64", "arm64"), ("riscv64", "riscv64")]
)
def test_the_platform_has_the_architecture_name_of_go(
    machine: str, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert str(Platform.current()) == f"linux/{architecture}"
