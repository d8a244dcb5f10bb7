"""`capelin up -f capelin.yaml`: an environment and its clusters, described in a file."""

from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from annotated_types import Ge, Le
from capelin.api import DNSLabel, Model
from capelin.embedded.binaries import KNOWN_KUBERNETES
from capelin.embedded.management import UpRequest
from capelin.errors import InvalidInputError
from pydantic import ValidationError, model_validator

from capelin_infra.demo import ClusterRequest, DemoOptions
from capelin_infra.topology import DEMO_CLASS, check_cluster_name
from capelin_infra.up import UP_SECONDS, UpOptions
from capelin_infra.versions import parse_version

_EXAMPLE: Final = "clusters: [{name: demo, workers: 3, variables: {machines: {dies: 20}}}]"


class ClusterEntry(Model):
    """A workload cluster in the file."""

    name: str
    namespace: DNSLabel = "default"
    class_: str = DEMO_CLASS
    kubernetes_version: str | None = None
    control_plane_replicas: Annotated[int, Ge(1), Le(9)] | None = None
    workers: Annotated[int, Ge(0), Le(10_000)] | None = None
    variables: dict[str, Any] = {}
    """Values of the class's variables, such as the faults of simulated machines."""

    @property
    def request(self) -> ClusterRequest:
        """What to bring up."""
        check_cluster_name(self.name)
        text = self.kubernetes_version
        version = None if text is None else parse_version(text, KNOWN_KUBERNETES)
        options = DemoOptions(
            self.workers, self.control_plane_replicas, version, self.class_, self.variables
        )
        return ClusterRequest(self.name, self.namespace, options)


class EnvironmentFile(Model):
    """The whole file."""

    name: str | None = None
    kubernetes_version: str | None = None
    with_: list[str] = []
    """More of Cluster API's own providers."""
    clusters: list[ClusterEntry] = []

    @model_validator(mode="after")
    def _check_names(self) -> "EnvironmentFile":
        names = [(entry.namespace, entry.name) for entry in self.clusters]
        for namespace, name in names:
            if names.count((namespace, name)) > 1:
                raise ValueError(f"two clusters are called {name} in namespace {namespace}")
        return self


def read_environment_file(path: Path) -> EnvironmentFile:
    """Read a file.

    Raises:
        InvalidInputError: with the field that is wrong.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return EnvironmentFile.model_validate(content or {})
    except OSError as error:
        reason = f"It cannot be read ({error.strerror})."
    except (yaml.YAMLError, UnicodeDecodeError):
        reason = "It is not YAML."
    except ValidationError as error:
        first = error.errors()[0]
        problem = first["msg"].removeprefix("Value error, ")
        field = ".".join(str(part) for part in first["loc"])
        reason = f"{field}: {problem}." if field else f"{problem}."
    raise InvalidInputError(
        f"{path} describes no environment.", reason=reason, hint=f"Write it as {_EXAMPLE}."
    )


def options_from(path: Path, name: str, *, within: float = UP_SECONDS) -> UpOptions:
    """What `capelin up -f` does; the file's name of the environment wins over the default one."""
    file = read_environment_file(path)
    request = UpRequest(kubernetes_version=file.kubernetes_version, providers=(*file.with_,))
    return UpOptions(
        file.name if file.name and name == "default" else name,
        request,
        demo=None,
        clusters=[cluster.request for cluster in file.clusters],
        within=within,
    )
