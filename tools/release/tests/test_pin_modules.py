import json
from pathlib import Path

import pytest
from capelin_embedded.binaries import DEFAULT_KUBERNETES, KUBERNETES, BinariesError, needed_go

from embedded.tests.binaries.conftest import FakeGo
from tools.pin_modules import (
    COMPONENTS,
    PROJECTS,
    RECIPES,
    go_mod,
    main,
    pin_modules,
    required_modules,
    sharing,
    tools_go,
)

UPSTREAM = """module k8s.io/kubernetes

go 1.26.1

require (
\tk8s.io/api v0.0.0
)

replace (
\tk8s.io/client-go => ./staging/src/k8s.io/client-go
\tk8s.io/api => ./staging/src/k8s.io/api
\texample.org/fork => example.org/forked v1.2.3
)
"""


def test_local_replacements_become_released_versions() -> None:
    text = go_mod("kubernetes", "v1.36.3", RECIPES["kubernetes"], [UPSTREAM])
    assert text == (
        "module capelin/kubernetes\n\ngo 1.26.1\n\n"
        "require (\n\tk8s.io/kubernetes v1.36.3\n)\n\n"
        "replace (\n"
        "\tk8s.io/api => k8s.io/api v0.36.3\n"
        "\tk8s.io/client-go => k8s.io/client-go v0.36.3\n"
        ")\n"
    )


def test_a_project_needs_the_newest_go_of_its_modules() -> None:
    upstream = ["module a\n\ngo 1.9\n", "module b\n\ngo 1.24\n", "module c\n\ngo 1.10.3\n"]
    text = go_mod("etcd", "v3.6.6", RECIPES["etcd"], upstream)
    assert text == (
        "module capelin/etcd\n\ngo 1.24\n\n"
        "require (\n\tgo.etcd.io/etcd/server/v3 v3.6.6\n\tgo.etcd.io/etcd/etcdctl/v3 v3.6.6\n"
        "\tgo.etcd.io/etcd/etcdutl/v3 v3.6.6\n)\n"
    )


def test_a_single_line_replacement_becomes_a_released_version() -> None:
    upstream = "module m\n\ngo 1.26.0\n\nreplace sigs.k8s.io/cluster-api/api => ../api\n"
    text = go_mod("cluster-api", "v1.14.1", RECIPES["cluster-api"], [upstream])
    assert "\tsigs.k8s.io/cluster-api/api => sigs.k8s.io/cluster-api/api v1.14.1\n" in text


@pytest.mark.parametrize("name", PROJECTS)
def test_every_project_is_pinned_to_its_versions(name: str) -> None:
    assert PROJECTS[name].versions
    packages = [component.package for component in COMPONENTS if component.project.name == name]
    for version in PROJECTS[name].versions:
        files = PROJECTS[name].module_files(version)
        assert f" {version}\n" in (files / "go.mod").read_text()
        assert all(f'"{package}"' in (files / "tools.go").read_text() for package in packages)
        assert needed_go(files) >= "1.22"
        assert (PROJECTS[name].module_files(version) / "tools.go").read_text() == tools_go(name)


@pytest.mark.parametrize(
    "name", [name for name, recipe in RECIPES.items() if recipe.shares_kubernetes]
)
def test_a_project_shares_the_modules_of_the_default_kubernetes(name: str) -> None:
    """Go then compiles them once for both: minutes on two cores."""
    kubernetes = KUBERNETES.module_files(DEFAULT_KUBERNETES) / "go.mod"
    of_kubernetes = required_modules(kubernetes.read_text())
    project, keeps = PROJECTS[name], RECIPES[name].keeps
    own = required_modules((project.module_files(project.default_version) / "go.mod").read_text())
    shared = {it for it in own.keys() & of_kubernetes.keys() if not it.startswith(keeps)}
    assert len(shared) > 60
    assert {it: own[it] for it in shared} == {it: of_kubernetes[it] for it in shared}


def test_newer_versions_of_shared_modules_are_excluded() -> None:
    text = sharing("module m\n", {"b": "v1.0.0", "a": "v1.2.0"}, {("b", "v1.1.0")})
    assert required_modules(text) == {"a": "v1.2.0", "b": "v1.0.0"}
    assert text.endswith("exclude (\n\tb v1.1.0\n)\n")


def test_the_command_prints_its_folder_and_the_needed_go(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def pinned(project: str, version: str, *_: object) -> Path:
        return PROJECTS[project].module_files(version)

    monkeypatch.setattr("tools.pin_modules.pin_modules", pinned)
    monkeypatch.setattr("sys.argv", ["pin", "cluster-api", "v1.14.2"])
    main()
    folder = PROJECTS["cluster-api"].module_files("v1.14.2")
    assert capsys.readouterr().out == f"{folder}: needs Go 1.26.0\n"


def test_the_command_prints_the_reason_of_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object) -> Path:
        raise BinariesError("PATH has no go command")

    monkeypatch.setattr("tools.pin_modules.pin_modules", refused)
    monkeypatch.setattr("sys.argv", ["pin", "kwok", "v0.7.0"])
    with pytest.raises(SystemExit, match=r"^PATH has no go command$"):
        main()


async def test_pinning_writes_the_output_of_go(tmp_path: Path) -> None:
    go = FakeGo(tmp_path / "go")
    (tmp_path / "upstream").write_text("module u\n\ngo 1.26.0\n")
    answer = json.dumps({"GoMod": str(tmp_path / "upstream")})
    go.answers_mod_with(
        f"""if [ "$2" = tidy ]; then echo sums > go.sum; echo "// tidy" >> go.mod
        else echo '{answer}'; fi"""
    )
    written = await pin_modules("kwok", "v0.7.0", tmp_path / "modules", {"PATH": go.path})
    assert written == tmp_path / "modules" / "kwok" / "v0.7.0"
    assert (written / "go.sum").read_text() == "sums\n"
    assert (written / "go.mod").read_text().endswith("\tsigs.k8s.io/kwok v0.7.0\n)\n// tidy\n")
    assert '_ "sigs.k8s.io/kwok/cmd/kwok"' in (written / "tools.go").read_text()
    assert go.environment()["GOFLAGS"] == "-mod=mod"
