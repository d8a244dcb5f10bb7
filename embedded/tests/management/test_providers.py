"""Upstream providers and providers of installed packages."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from unittest.mock import Mock

import pytest
from capelin.errors import InvalidInputError, UserError
from capelin.provider import ENTRY_POINTS, Provider
from capelin_embedded.management import providers
from capelin_embedded.management.providers import (
    code_digest,
    installed_providers,
    python_component,
    required_programs,
    upstream_providers,
    workload_programs,
)

MINE = Provider(
    name="mine",
    type="ControlPlaneProvider",
    version="v0.1.0",
    module="mine.manager",
    crds=[
        {
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "x"},
            "spec": {"group": "sea.example", "names": {"plural": "fishes"}, "versions": []},
        }
    ],
    rules=[{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}],
    arguments=["--concurrency=5"],
    objects=[{"kind": "ExtensionConfig", "metadata": {"name": "x"}}],
)


def test_upstream_providers_always_begin_with_core() -> None:
    assert [provider.label for provider in upstream_providers([])] == ["cluster-api"]
    assert [provider.label for provider in upstream_providers(["dev", "kubeadm"])] == [
        "cluster-api",
        "bootstrap-kubeadm",
        "control-plane-kubeadm",
        "infrastructure-docker",
    ]


def test_required_programs_have_the_kubernetes_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "running.py").write_text(
        "from capelin.provider import Provider\n"
        "def provider():\n"
        "    return Provider('running', 'InfrastructureProvider', 'v1.0.0', 'running',"
        " programs=['kwok', 'kube-scheduler', 'etcd'])\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    point = EntryPoint("running", "running:provider", ENTRY_POINTS)
    monkeypatch.setattr(providers, "entry_points", Mock(return_value=[point]))
    assert required_programs("v1.33.13", []) == [
        "kube-apiserver@v1.33.13",
        "kube-controller-manager@v1.33.13",
        "etcd",
        "kubectl@v1.33.13",
        "cluster-api-controller",
        "kwok",
        "kube-scheduler@v1.33.13",
    ]
    assert "kube-apiserver@v1.33.13" not in required_programs("v1.33.13", [], target="existing")
    assert workload_programs("v1.35.4") == ["kube-scheduler@v1.35.4"]


def test_the_error_for_an_unknown_provider_lists_known_ones() -> None:
    with pytest.raises(
        InvalidInputError,
        match=r"'aws'. Available providers: kubeadm-bootstrap, kubeadm, dev",
    ):
        upstream_providers(["kubeadm", "aws"])


def entry_point(describe: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> EntryPoint:
    """The entry point of a package whose function `describe` returns the expression."""
    module = f"package_{folder.name.replace('-', '_')}"
    (folder / f"{module}.py").write_text(
        f"from capelin.provider import Provider\ndef describe():\n    return {describe}\n"
    )
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    return EntryPoint("mine", f"{module}:describe", "capelin.providers")


def test_an_entry_point_adds_a_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Provider(name='p', type='InfrastructureProvider', version='v1', module='m')"
    (provider,) = installed_providers([entry_point(text, tmp_path, monkeypatch)])
    assert (provider.label, provider.module) == ("infrastructure-p", "m")


@pytest.mark.parametrize(
    "text", ["None", "Provider(name='p', type='Unheard', version='v1', module='m')"]
)
def test_an_invalid_entry_point_fails(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"The entry point 'mine' .* not describe a provider"):
        installed_providers([entry_point(text, tmp_path, monkeypatch)])


def test_the_role_of_a_manager_has_exactly_its_rules() -> None:
    components = {component["kind"]: component for component in MINE.components()}
    assert list(components) == [
        "CustomResourceDefinition",
        "ClusterRole",
        "Namespace",
        "ServiceAccount",
        "ClusterRoleBinding",
    ]
    roles = [component for component in MINE.components() if component["kind"] == "ClusterRole"]
    assert [role["metadata"]["name"] for role in roles] == [
        f"control-plane-mine-system-{name}"
        for name in ("view", "edit", "operate", "core", "manager")
    ]
    assert components["ClusterRole"]["rules"] == MINE.rules
    assert (
        components["ClusterRoleBinding"]["roleRef"]["name"] == "control-plane-mine-system-manager"
    )
    assert components["ClusterRoleBinding"]["subjects"] == [
        {
            "kind": "ServiceAccount",
            "name": "control-plane-mine",
            "namespace": "control-plane-mine-system",
        }
    ]
    launch = python_component(MINE).launch
    assert (launch.namespace, launch.service_account, launch.arguments) == (
        "control-plane-mine-system",
        "control-plane-mine",
        ("--concurrency=5",),
    )


def test_code_digest_changes_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "changing_provider"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = code_digest("changing_provider.manager")
    assert code_digest("changing_provider.manager") == before
    (package / "manager.py").write_text("print()")
    assert code_digest("changing_provider.manager") != before
