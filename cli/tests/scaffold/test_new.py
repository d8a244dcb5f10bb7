"""`capelin new` writes a working extension or provider."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from capelin.api.capi import ExtensionConfig
from capelin.api.core import Namespace
from capelin.client import Client, Config
from capelin.errors import InvalidInputError
from capelin.runtime.client import endpoint_of
from capelin_cli.scaffold import writing
from capelin_cli.scaffold.writing import write_project
from capelin_embedded.management import render_template
from capelin_release.project import Project
from capelin_release.tools import HELM


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_project("extension", "storage-guard", tmp_path / "storage-guard")
    return tmp_path / "storage-guard"


def test_tests_of_a_new_extension_pass_and_pin_released_patches(folder: Path) -> None:
    tests = ("pytest", "-q", "-p", "no:cacheprovider")
    first = run(folder, *tests, "tests/test_released.py")
    assert (first.returncode, "run pytest --record" in first.stdout) == (1, True)
    recorded = run(folder, *tests, "--record")
    assert recorded.returncode == 0, recorded.stdout
    assert (folder / "tests/released/motto-v1/example.json").exists()
    handlers = folder / "src/storage_guard/handlers.py"
    handlers.write_text(handlers.read_text().replace("/etc/motd", "/etc/issue"))
    changed = run(folder, *tests, "tests/test_released.py")
    assert changed.returncode == 1
    assert "motto-v1 now responds to example differently" in changed.stdout


def test_a_new_extension_depends_on_the_checkout(folder: Path) -> None:
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    source = project["tool"]["uv"]["sources"]["capelin-core"]
    assert (Path(source["path"]) / "src/capelin/__init__.py").exists()


@pytest.mark.parametrize("template", ["extension", "provider"])
def test_packages_come_from_the_checkout(tmp_path: Path, template: writing.Template) -> None:
    write_project(template, "my-project", tmp_path / "my-project")
    project = tomllib.loads((tmp_path / "my-project/pyproject.toml").read_text())
    needed = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    names = {re.split(r"[\[>=]", line)[0] for line in needed if line.startswith("capelin")}
    sources = project["tool"]["uv"]["sources"]
    assert (
        names
        == {*sources}
        == {
            *("capelin", "capelin-core", "capelin-embedded", "capelin-release"),
        }
    )
    for name, source in sources.items():
        package = tomllib.loads((Path(source["path"]) / "pyproject.toml").read_text())
        assert package["project"]["name"] == name


def sources_of(monkeypatch: pytest.MonkeyPatch, origin: object, **given: str) -> Any:
    """The settings for uv of a Capelin whose direct_url.json says this."""
    text = None if origin is None else json.dumps(origin)
    installed = Mock(return_value=Mock(read_text=Mock(return_value=text)))
    monkeypatch.setattr(writing, "distribution", installed)
    return tomllib.loads(writing.package_sources(**given)).get("tool", {}).get("uv", {})


def test_a_released_capelin_is_not_replaced_by_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sources_of(monkeypatch, None) == {}


def test_a_checkout_need_not_be_editable(monkeypatch: pytest.MonkeyPatch) -> None:
    origin: dict[str, Any] = {"url": "file:///src/capelin/cli", "dir_info": {}}
    sources = sources_of(monkeypatch, origin)["sources"]
    assert sources["capelin-core"] == {"path": "/src/capelin/core", "editable": True}


def test_packages_come_from_the_folder_of_the_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel = tmp_path / "capelin-0.1.0-py3-none-any.whl"
    wheel.touch()
    origin: dict[str, Any] = {"url": wheel.as_uri(), "archive_info": {}}
    assert sources_of(monkeypatch, origin) == {"find-links": [str(tmp_path)]}


@pytest.mark.parametrize("origin", [None, {"url": "file:///src/cli", "dir_info": {}}])
def test_packages_come_from_the_place_that_is_named(
    monkeypatch: pytest.MonkeyPatch, origin: object
) -> None:
    page, index = "https://wheels.example/", "https://index.example/simple"
    assert sources_of(monkeypatch, origin, find_links=page) == {"find-links": [page]}
    assert sources_of(monkeypatch, origin, find_links="wheels") == {
        "find-links": [str(Path.cwd() / "wheels")]
    }
    assert sources_of(monkeypatch, origin, index=index) == {"index": [{"url": index}]}


def test_the_command_prints_what_to_do_next(tmp_path: Path) -> None:
    done = run(tmp_path, "capelin_cli", "new", "provider", "tin", "--folder", "my folder")
    assert done.stdout.splitlines()[-1] == "Next: cd 'my folder' && uv run pytest"


def test_a_new_extension_is_an_executable_module(folder: Path) -> None:
    result = run(folder, "storage_guard", "--help")
    assert result.returncode == 0
    assert "Serve the Runtime Extension storage-guard" in result.stdout


def test_a_new_extension_passes_ruff(folder: Path) -> None:
    for check in (("check",), ("format", "--check")):
        found = run(folder, "ruff", *check, "--no-cache", ".")
        assert found.returncode == 0, found.stdout


def test_certificate_names_the_service(
    folder: Path,
) -> None:
    text = (folder / "deploy/extension.yaml").read_text()
    manifests = {one["kind"]: one for one in yaml.safe_load_all(text)}
    config = ExtensionConfig.read(
        yaml.safe_load((folder / "deploy/extensionconfig.yaml").read_text())
    )
    host = endpoint_of(config.spec.client_config).host
    assert host in manifests["Certificate"]["spec"]["dnsNames"]
    pod = manifests["Deployment"]["spec"]["template"]["spec"]
    secret = manifests["Certificate"]["spec"]["secretName"]
    # Core waits 30 s for an answer at most, and may begin to just before its callers know.
    assert pod["terminationGracePeriodSeconds"] > 30 + 5
    assert pod["volumes"][0]["secret"]["secretName"] == secret
    injected = config.metadata.annotations["runtime.cluster.x-k8s.io/inject-ca-from-secret"]
    assert injected == f"storage-guard/{secret}"


async def test_an_api_server_accepts_the_manifests_of_a_new_extension(
    folder: Path, kubeconfig: Path, install_crds: Callable[..., None]
) -> None:
    """Checks kinds of Kubernetes and Cluster API. The API server lacks those of cert-manager."""
    install_crds("extensionconfigs.runtime.cluster.x-k8s.io")
    manifests = [
        one
        for file in ("extension.yaml", "extensionconfig.yaml")
        for one in yaml.safe_load_all((folder / "deploy" / file).read_text())
        if not one["apiVersion"].startswith("cert-manager.io/")
    ]
    async with Client(Config.from_kubeconfig(kubeconfig), manager="user") as client:
        await client.apply(Namespace.of("storage-guard"))
        for manifest in manifests:
            await client.apply(manifest, dry_run=True)
    kinds = {manifest["kind"] for manifest in manifests}
    assert kinds >= {"Namespace", "Deployment", "Service", "PodDisruptionBudget", "ExtensionConfig"}


def test_the_image_copies_the_files_of_the_package(folder: Path) -> None:
    """Only checks the files, since a build needs a container engine."""
    lines = (folder / "Dockerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]}
    package = tomllib.loads((folder / "pyproject.toml").read_text())
    sources = package["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {"pyproject.toml", package["project"]["readme"], *sources}
    for name in needed:
        assert (folder / name).exists()
        assert copied & {name, *map(str, Path(name).parents)}, name
    (entry,) = (line for line in lines if line.startswith("ENTRYPOINT"))
    (program,) = json.loads(entry.removeprefix("ENTRYPOINT"))
    module, _, function = package["project"]["scripts"][program].partition(":")
    found = run(folder, "pydoc", f"{module}.{function}")
    assert found.returncode == 0, found.stdout
    assert "No Python documentation found" not in found.stdout + found.stderr


def test_gitignore_lists_the_certificates_that_the_readme_creates(folder: Path) -> None:
    (certificates,) = re.findall(r"hooks certificate (\S+)", (folder / "README.md").read_text())
    assert f"{certificates}/" in (folder / ".gitignore").read_text().splitlines()


def test_no_placeholder_remains(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            assert "{{" not in path.read_text(), path
            assert path.suffix != ".txt"


def test_new_does_not_overwrite_files(folder: Path) -> None:
    with pytest.raises(InvalidInputError, match="exists already"):
        write_project("extension", "storage-guard", folder)


@pytest.mark.parametrize(
    "name",
    [
        *("", "Guard", "my_guard", "-guard", "1guard", "class", "a" * 51),
        *("json", "capelin", "tests", "null", "true", "on", "no"),
    ],
)
def test_a_name_must_be_valid_for_a_package_and_a_service(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be the name"):
        write_project("extension", name, tmp_path / "other")


@pytest.fixture
def provider(tmp_path: Path) -> Path:
    write_project("provider", "my-cloud", tmp_path / "my-cloud")
    return tmp_path / "my-cloud"


def test_the_tests_of_a_new_provider_pass(provider: Path) -> None:
    done = run(provider, "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_a_new_provider_is_an_executable_module_and_passes_ruff(provider: Path) -> None:
    result = run(provider, "my_cloud", "--help")
    assert result.returncode == 0, result.stderr
    for check in (("check",), ("format", "--check")):
        found = run(provider, "ruff", *check, "--no-cache", ".")
        assert found.returncode == 0, found.stdout


def test_a_new_provider_has_an_entry_point(provider: Path) -> None:
    package = tomllib.loads((provider / "pyproject.toml").read_text())
    assert package["project"]["entry-points"]["capelin.providers"] == {
        "my-cloud": "my_cloud.provider:provider"
    }
    code = "from my_cloud.provider import provider; print(provider().label, len(provider().crds))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=provider / "src",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["infrastructure-my-cloud", "4"]
    files = [path for path in provider.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert [path for path in files if "{{" in path.read_text()] == []


RELEASE = """
import asyncio
import sys
from importlib import import_module
from pathlib import Path
from capelin_release.repository import write_installation

installation = import_module(sys.argv[1]).installation

asyncio.run(
    write_installation(
        Path("dist"),
        installation(version="0.1.0", registry="registry.example/us"),
        version="0.1.0",
        sources=Path("clusterctl"),
        modified=0,
    )
)
"""


def write_release(project: Path, module: str) -> None:
    """Write the files of a release without images, which need a lock file and the network."""
    subprocess.run(
        [sys.executable, "-c", RELEASE, module],
        cwd=project,
        env={**os.environ, "PYTHONPATH": "src"},
        check=True,
    )


@pytest.mark.timeout(300)
@pytest.mark.needs_programs(HELM)
def test_a_new_extension_has_a_release(folder: Path) -> None:
    write_release(folder, "storage_guard.release")
    release = folder / "dist/clusterctl/runtime-extension-storage-guard/v0.1.0"
    assert {file.name for file in release.iterdir()} == {
        "metadata.yaml",
        "runtime-extension-components.yaml",
    }
    text = (release / "runtime-extension-components.yaml").read_text()
    objects = {obj["kind"]: obj for obj in render_template(text, {})}
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/us/storage-guard:v0.1.0"
    result = run(folder, "storage_guard", "--help").stdout
    flags = {argument.partition("=")[0] for argument in container["args"]}
    assert {flag for flag in flags if flag not in result} == set()
    config = ExtensionConfig.read(objects["ExtensionConfig"])
    registered = yaml.safe_load((folder / "deploy/extensionconfig.yaml").read_text())
    assert config.name == registered["metadata"]["name"]
    assert endpoint_of(config.spec.client_config).host in objects["Certificate"]["spec"]["dnsNames"]
    assert (folder / "dist/storage-guard-0.1.0.tgz").exists()
    settings = Project(folder).release
    assert settings.installation == "storage_guard.release:installation"
    assert [image.name for image in settings.images] == ["storage-guard"]


@pytest.mark.timeout(300)
@pytest.mark.needs_programs(HELM)
def test_a_new_provider_has_a_release(provider: Path) -> None:
    write_release(provider, "my_cloud.release")
    release = provider / "dist/clusterctl/infrastructure-my-cloud/v0.1.0"
    assert {file.name for file in release.iterdir()} == {
        "cluster-template.yaml",
        "infrastructure-components.yaml",
        "metadata.yaml",
    }
    text = (release / "infrastructure-components.yaml").read_text()
    objects = render_template(text, {"MY_CLOUD_INFRASTRUCTURE_CONCURRENCY": "2"})
    (deployment,) = (obj for obj in objects if obj["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "--concurrency=2" in container["args"]
    assert container["image"] == "registry.example/us/my-cloud:v0.1.0"
    kinds = {obj["spec"]["names"]["kind"] for obj in objects if "names" in obj.get("spec", {})}
    assert {"MyCloudCluster", "MyCloudMachine", "MyCloudMachineTemplate"} < kinds
    given = {"CLUSTER_NAME": "demo", "NAMESPACE": "sea", "KUBERNETES_VERSION": "v1.34.4"}
    cluster = render_template((release / "cluster-template.yaml").read_text(), given)
    assert {obj["metadata"]["namespace"] for obj in cluster} == {"sea"}
    assert (provider / "dist/my-cloud-0.1.0.tgz").exists()
    crds = {file.name.partition(".")[0] for file in (provider / "dist/crds").iterdir()}
    assert {"mycloudclusters", "mycloudmachines"} < crds
    for contract in ("infra-cluster", "infra-machine", "clusterctl"):
        result = run(provider, "capelin_cli", "conformance", contract, f"--manifests={release}")
        assert result.returncode == 0, result.stdout + result.stderr
    settings = Project(provider).release
    assert settings.installation == "my_cloud.release:installation"
    assert [image.name for image in settings.images] == ["my-cloud"]
