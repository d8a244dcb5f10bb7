"""The providers that `nox -s providers` checks, and the table of their results."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capelin_embedded.binaries import CLUSTER_API, Project

from tests.support.result_tables import ResultTable

FOLDER: Final = Path(__file__).parent
ENVIRONMENT: Final = "providers"
RESULTS: Final = FOLDER / "results.json"
SHOWN: Final = ResultTable(FOLDER.parents[1] / "docs/how-to/conformance.md", "nox -s providers")

Results = dict[str, dict[str, str]]
"""The result of each command, by the provider with its version."""


@dataclass(frozen=True, slots=True)
class Check:
    """Arguments of `capelin conformance`. With samples, it checks the behaviour, too."""

    contract: str
    kind: str | None = None
    samples: str | None = None

    def arguments(self, samples: Path = Path()) -> list[str]:
        """The arguments, except the manifests. The samples are in a folder."""
        kind = [f"--kind={self.kind}"] if self.kind else []
        behaviour = (
            [f"--environment={ENVIRONMENT}", f"--samples={samples / self.samples}"]
            if self.samples
            else []
        )
        return [self.contract, *kind, *behaviour]

    @property
    def command(self) -> str:
        """The arguments for readers."""
        return " ".join(self.arguments())


@dataclass(frozen=True, slots=True)
class RealProvider:
    """A provider in another language, and its checks."""

    name: str
    project: Project
    source: str
    """The Go module with its manifests, by its name among the project's sources."""
    folder: str
    """The folder in it that has config/default."""
    type: str
    """The type of the provider, as in the name of its released file."""
    checks: tuple[Check, ...]

    @property
    def version(self) -> str:
        return self.project.default_version

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"


def _project(name: str, module: str) -> Project:
    return Project(name, name, sources={name: module}, stamps={}, modules=FOLDER / "modules")


GCP: Final = _project("gcp", "sigs.k8s.io/cluster-api-provider-gcp")
AWS: Final = _project("aws", "sigs.k8s.io/cluster-api-provider-aws/v2")
_CLUSTERCTL: Final = Check("clusterctl")

PROVIDERS: Final = (
    RealProvider(
        "kubeadm control plane",
        CLUSTER_API,
        "cluster-api",
        "controlplane/kubeadm",
        "control-plane",
        (Check("control-plane", "KubeadmControlPlane", "kubeadm.yaml"), _CLUSTERCTL),
    ),
    RealProvider(
        "kubeadm bootstrap",
        CLUSTER_API,
        "cluster-api",
        "bootstrap/kubeadm",
        "bootstrap",
        (Check("bootstrap", "KubeadmConfig", "bootstrap.yaml"), _CLUSTERCTL),
    ),
    RealProvider(
        "Docker",
        CLUSTER_API,
        "cluster-api/test",
        "infrastructure/docker",
        "infrastructure",
        (
            Check("infra-cluster", "DevCluster", "dev.yaml"),
            Check("infra-machine", "DevMachine", "dev.yaml"),
            Check("machine-pool", "DevMachinePool"),
            Check("infra-cluster", "DockerCluster"),
            Check("infra-machine", "DockerMachine"),
            Check("machine-pool", "DockerMachinePool"),
            _CLUSTERCTL,
        ),
    ),
    RealProvider(
        "GCP",
        GCP,
        "gcp",
        "",
        "infrastructure",
        (
            Check("infra-cluster", "GCPCluster"),
            Check("infra-machine", "GCPMachine"),
            Check("machine-pool", "GCPMachinePool"),
            Check("control-plane", "GCPManagedControlPlane"),
            Check("bootstrap", "GKEConfig"),
            _CLUSTERCTL,
        ),
    ),
    RealProvider(
        "AWS",
        AWS,
        "aws",
        "",
        "infrastructure",
        (
            Check("infra-cluster", "AWSCluster"),
            Check("infra-machine", "AWSMachine"),
            Check("machine-pool", "AWSMachinePool"),
            Check("control-plane", "AWSManagedControlPlane"),
            Check("bootstrap", "EKSConfig"),
            _CLUSTERCTL,
        ),
    ),
)


def read_results() -> Results:
    """The results of the last run of each check."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def table(results: Results) -> str:
    """The results as a Markdown table. A check without a result raises `KeyError`."""
    rows = [
        f"| {provider.name} | {provider.version} | `{check.command}` |"
        f" {results[provider.title][check.command]} |"
        for provider in PROVIDERS
        for check in provider.checks
    ]
    return "\n".join(["| provider | version | command | result |", "|---|---|---|---|", *rows, ""])
