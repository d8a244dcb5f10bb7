"""The catalog of binaries that Capelin provides: projects, their versions, their binaries.

A version is known if the project's module folder has `<version>/` with pinned Go module files. No
other list of versions exists. Other packages define their own binaries with their own folders.
"""

import json
import platform as machine
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from capelin.versions import Version

from capelin_embedded.binaries.errors import UnknownComponentError

MODULES = Path(__file__).parent.parent / "modules"


@dataclass(frozen=True, slots=True, eq=False)
class Project:
    """A source tree with several binaries, which are always built together."""

    name: str
    title: str
    sources: Mapping[str, str]
    """Go modules whose source folders can be requested: name here -> module path."""
    stamps: Mapping[str, str]
    """Go variables that the linker sets, so that a binary prints its version."""
    tested: tuple[str, ...] = ()
    """The versions that Capelin's own tests run, oldest first. Empty if that is the newest."""
    modules: Path = field(default_factory=lambda: MODULES)
    """The folder with module files: `<project>/<version>/`."""
    tags: tuple[str, ...] = ()
    """Build tags, for programs that are built without their optional parts."""

    @property
    def versions(self) -> tuple[str, ...]:
        """The known versions, oldest first."""
        folders = (self.modules / self.name).glob("v*")
        return tuple(sorted((folder.name for folder in folders), key=Version.parse))

    @property
    def default_version(self) -> str:
        return (self.tested or self.versions)[-1]

    def module_files(self, version: str) -> Path:
        """The folder with the pinned `go.mod` and `go.sum`."""
        return self.modules / self.name / version

    def linker_flags(self, version: str) -> str:
        """The linker's arguments for `go build`: no symbols, and the version in its variables."""
        major, minor, *_ = version.removeprefix("v").split(".")
        stamps = (
            f"-X {variable}={value.format(version=version, major=major, minor=minor)}"
            for variable, value in self.stamps.items()
        )
        return " ".join(["-s", "-w", *stamps])

    def image_digests(self, version: str) -> dict[str, str]:
        file = self.module_files(version) / "images.json"
        return json.loads(file.read_text()) if file.exists() else {}


@dataclass(frozen=True, slots=True)
class Image:
    """A binary's place in an official image. `{version}` is v1.2.3, `{number}` is 1.2.3."""

    reference: str
    file: str

    def reference_of(self, version: str) -> str:
        """For example `registry.k8s.io/etcd:3.6.8-0`."""
        return self.reference.format(version=version, number=version.removeprefix("v"))


@dataclass(frozen=True, slots=True, eq=False)
class Component:
    """One binary: the Go package of its source, and its official image if it has one."""

    name: str
    project: Project
    package: str
    image: Image | None = None
    version_arguments: tuple[str, ...] | None = None
    """The arguments that print its version, or None if it cannot print it."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ComponentVersion:
    """A component in a version. `explicit` means that the user specified the version."""

    component: Component
    version: str
    explicit: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        """For example `kube-apiserver v1.36.3`."""
        return f"{self.component.name} {self.version}"


@dataclass(frozen=True, slots=True)
class Platform:
    """An operating system and a processor architecture, by their Go names."""

    system: str
    architecture: str

    def __str__(self) -> str:
        """For example `linux/amd64`."""
        return f"{self.system}/{self.architecture}"

    @classmethod
    def current(cls) -> "Platform":
        name = machine.machine().lower()
        return cls(sys.platform, _ARCHITECTURES.get(name, name))


_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}

KUBERNETES = Project(
    "kubernetes",
    "Kubernetes",
    sources={"kubernetes": "k8s.io/kubernetes"},
    stamps={
        "k8s.io/component-base/version.gitVersion": "{version}",
        "k8s.io/component-base/version.gitMajor": "{major}",
        "k8s.io/component-base/version.gitMinor": "{minor}",
    },
    tested=("v1.35.4", "v1.36.3"),
)
ETCD = Project("etcd", "etcd", sources={}, stamps={})
CLUSTER_API = Project(
    "cluster-api",
    "Cluster API",
    sources={
        "cluster-api": "sigs.k8s.io/cluster-api",
        "cluster-api/test": "sigs.k8s.io/cluster-api/test",
    },
    stamps={
        "sigs.k8s.io/cluster-api/version.gitVersion": "{version}",
        "sigs.k8s.io/cluster-api/version.gitMajor": "{major}",
        "sigs.k8s.io/cluster-api/version.gitMinor": "{minor}",
    },
)
KWOK = Project("kwok", "KWOK", sources={"kwok": "sigs.k8s.io/kwok"}, stamps={})
KONNECTIVITY = Project("konnectivity", "konnectivity", sources={}, stamps={})

PROJECTS = {
    project.name: project
    for project in (
        KUBERNETES,
        ETCD,
        CLUSTER_API,
        KWOK,
        KONNECTIVITY,
    )
}


def _kubernetes(name: str, *version_arguments: str, image: Image | None) -> Component:
    return Component(name, KUBERNETES, f"k8s.io/kubernetes/cmd/{name}", image, version_arguments)


def _kubernetes_server(name: str) -> Component:
    image = Image(f"registry.k8s.io/{name}:{{version}}", f"usr/local/bin/{name}")
    return _kubernetes(name, "--version", image=image)


def _etcd(name: str, package: str, *version_arguments: str) -> Component:
    image = Image("registry.k8s.io/etcd:{number}-0", f"usr/local/bin/{name}")
    return Component(name, ETCD, f"go.etcd.io/etcd/{package}", image, version_arguments)


def _cluster_api(name: str, package: str, registry: str) -> Component:
    image = Image(f"{registry}/{name}:{{version}}", "manager")
    return Component(name, CLUSTER_API, f"sigs.k8s.io/cluster-api/{package}", image)


_RELEASED = "registry.k8s.io/cluster-api"
_FOR_TESTS = "gcr.io/k8s-staging-cluster-api"

COMPONENTS = {
    component.name: component
    for component in (
        _kubernetes_server("kube-apiserver"),
        _kubernetes_server("kube-controller-manager"),
        _kubernetes_server("kube-scheduler"),
        _kubernetes("kubeadm", "version", "-o", "short", image=None),
        _kubernetes(
            "kubectl",
            "version",
            "--client",
            image=Image("registry.k8s.io/kubectl:{version}", "bin/kubectl"),
        ),
        _etcd("etcd", "server/v3", "--version"),
        _etcd("etcdctl", "etcdctl/v3", "version"),
        _etcd("etcdutl", "etcdutl/v3", "version"),
        _cluster_api("cluster-api-controller", "core", _RELEASED),
        _cluster_api("kubeadm-bootstrap-controller", "bootstrap/kubeadm", _RELEASED),
        _cluster_api("kubeadm-control-plane-controller", "controlplane/kubeadm", _RELEASED),
        _cluster_api("capd-manager", "test/infrastructure/docker", _FOR_TESTS),
        _cluster_api("test-extension", "test/extension", _FOR_TESTS),
        Component(
            "clusterctl",
            CLUSTER_API,
            "sigs.k8s.io/cluster-api/cmd/clusterctl",
            Image("registry.k8s.io/cluster-api/clusterctl:{version}", "clusterctl"),
            ("version", "-o", "short"),
        ),
        Component(
            "kwok",
            KWOK,
            "sigs.k8s.io/kwok/cmd/kwok",
            Image("registry.k8s.io/kwok/kwok:{version}", "usr/local/bin/kwok"),
            ("--version",),
        ),
        Component(
            "konnectivity-server", KONNECTIVITY, "sigs.k8s.io/apiserver-network-proxy/cmd/server"
        ),
        Component(
            "konnectivity-agent", KONNECTIVITY, "sigs.k8s.io/apiserver-network-proxy/cmd/agent"
        ),
    )
}

KNOWN_KUBERNETES = KUBERNETES.versions
"""The Kubernetes versions that control planes can run, oldest first."""

TESTED_KUBERNETES = KUBERNETES.tested
"""Those of them that all of Capelin's own tests run, oldest first."""

DEFAULT_KUBERNETES = TESTED_KUBERNETES[-1]
"""The version of a new environment. Cluster API has the same libraries, so Go builds them once."""


def parse_component(text: str | Component) -> ComponentVersion:
    """Parse `kube-apiserver` (in its default version) or `kube-apiserver@v1.35.4`.

    Binaries of other packages come as components.
    """
    if isinstance(text, Component):
        return ComponentVersion(text, text.project.default_version)
    name, at_sign, version = text.partition("@")
    component = COMPONENTS.get(name)
    if component is None:
        known = ", ".join(sorted(COMPONENTS))
        raise UnknownComponentError(
            f"{name!r} is not a binary that Capelin provides (known: {known})"
        )
    if not at_sign:
        return ComponentVersion(component, component.project.default_version)
    check_version(component.project, version)
    return ComponentVersion(component, version, explicit=True)


def check_version(project: Project, version: str) -> None:
    """Raise UnknownComponentError for a version without pinned module files."""
    if version not in project.versions:
        known = ", ".join(project.versions)
        raise UnknownComponentError(
            f"{version} is not a {project.title} version that Capelin provides (known: {known})"
        )


def check_kubernetes_version(version: str) -> None:
    """Raise UnknownComponentError for a Kubernetes version that Capelin does not provide."""
    check_version(KUBERNETES, version)
