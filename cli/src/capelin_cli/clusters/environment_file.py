"""`capelin up -f capelin.yaml`: an environment and its clusters, described in a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from annotated_types import Ge, Le
from capelin.api import DNSLabel, Model
from capelin.errors import InvalidInputError
from capelin_embedded.binaries import KNOWN_KUBERNETES
from capelin_embedded.management import DEFAULT_NAME, UpRequest
from pydantic import ValidationError, model_validator

from capelin_cli.clusters.demo import ClusterRequest
from capelin_cli.clusters.topology import DEMO_CLASS, ClusterOptions, check_cluster_name
from capelin_cli.clusters.up import UpOptions
from capelin_cli.environments.bring_up import UP_SECONDS
from capelin_cli.environments.kubernetes_versions import parse_version

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
        """The request for this cluster."""
        check_cluster_name(self.name)
        text = self.kubernetes_version
        version = None if text is None else parse_version(text, KNOWN_KUBERNETES)
        options = ClusterOptions(
            self.class_, version, self.control_plane_replicas, self.workers, self.variables
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
                raise ValueError(f"two clusters have the name {name} in namespace {namespace}")
        return self


def read_environment_file(path: Path) -> EnvironmentFile:
    """Read a file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return EnvironmentFile.model_validate(content or {})
    except OSError as error:
        reason = f"It cannot be read ({error.strerror})."
    except yaml.YAMLError as error:
        reason = f"It is not YAML: {_yaml_problem(error)}."
    except UnicodeDecodeError:
        reason = "It is not UTF-8 text."
    except ValidationError as error:
        first = error.errors()[0]
        problem = first["msg"].removeprefix("Value error, ")
        field = ".".join(str(part) for part in first["loc"])
        reason = f"{field}: {problem}." if field else f"{problem}."
    raise InvalidInputError(
        f"{path} describes no environment.", reason=reason, hint=f"Write it as {_EXAMPLE}."
    )


def _yaml_problem(error: yaml.YAMLError) -> str:
    """As in `line 3, column 5: expected <block end>`: lines and columns as editors count them."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return str(error).splitlines()[0]
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "it cannot be parsed"
    return problem if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


@dataclass(frozen=True, slots=True)
class NamedBy:
    """The name of the environment that the command line or the shell gives, if any."""

    option: str | None = None
    """Of `-e`."""
    variable: str | None = None
    """Of `CAPELIN_ENVIRONMENT`."""


def chosen_name(file: str | None, given: NamedBy, path: Path) -> str:
    """The environment that `capelin up -f` brings up.

    The file's name wins over the variable, which may be meant for other commands. An option must
    not contradict the file.
    """
    if file is None:
        return given.option or given.variable or DEFAULT_NAME
    if given.option in {None, file}:
        return file
    raise InvalidInputError(
        f"{path} describes environment {file}, and -e names {given.option}.",
        reason="The clusters in the file would come up in another environment.",
        hint=f"Leave out -e, or change name: {file} in the file.",
    )


def options_from(path: Path, given: NamedBy, *, within: float = UP_SECONDS) -> UpOptions:
    """The options of `capelin up -f`."""
    file = read_environment_file(path)
    request = UpRequest(kubernetes_version=file.kubernetes_version, providers=(*file.with_,))
    return UpOptions(
        chosen_name(file.name, given, path),
        request,
        demo=None,
        clusters=[cluster.request for cluster in file.clusters],
        within=within,
    )
