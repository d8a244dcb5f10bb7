"""The server of the extension, with the reconcilers of its policies."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml
from capelin.client import AllowedEndpoint, Config, read_endpoints
from capelin.flags import flag, number_from, truth
from capelin.runtime.server import Options, read_options, serve
from capelin.yaml import read_all_yaml

from capelin_lifecycle.actions.artifacts import ARTIFACTS
from capelin_lifecycle.admission import NotAdmissibleError, admission_policies
from capelin_lifecycle.api.policies import POLICY_TYPES
from capelin_lifecycle.engine import Engine, EngineOptions
from capelin_lifecycle.hooks import NAME, build
from capelin_lifecycle.sandbox.pool import MIB, SANDBOX, Budget


def read_program(text: str) -> Path:
    """The absolute path of a program.

    Raises:
        ValueError: It is another path, or no program.
    """
    path = Path(text)
    if not path.is_absolute() or not os.access(path, os.X_OK):
        raise ValueError(f"{text} is not the absolute path of a program")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleOptions(Options):
    """Options of the extension's server, its sandbox and its sources."""

    leader_elect: bool = flag(
        False,  # noqa: FBT003 - the flag's default
        truth,
        "With several replicas, run the reconcilers only on the one that holds a lease.",
        shown="false",
    )
    in_place_updates: bool = flag(
        False,  # noqa: FBT003 - the flag's default
        truth,
        "Answer the hooks of updates in place, for machines of the backend Hosts. Cluster API"
        " permits one extension for these hooks.",
        shown="false",
    )
    extension_config: str = flag(NAME, str, "Name of the extension's ExtensionConfig.")
    expression_cpu_milliseconds: int = flag(
        100,
        number_from(10, 10_000),
        "CPU time that the expressions of a policy may take for a Cluster.",
    )
    expression_memory_mebibytes: int = flag(
        50,
        number_from(16, 1024),
        "Memory that the expressions of a policy may need for a Cluster.",
    )
    registries: tuple[AllowedEndpoint, ...] = flag(
        (),
        read_endpoints,
        "OCI registries that policies may pull from, with commas between them, such as"
        " https://ghcr.io. https://*.example.com and https://* allow more, except local addresses.",
        shown="none",
    )
    helm: Path | None = flag(
        None, read_program, "Path of the program that renders Helm charts.", shown="none: no charts"
    )

    @property
    def engine(self) -> EngineOptions:
        return EngineOptions(self.leader_elect, self.extension_config, self.in_place_updates)

    @property
    def expressions(self) -> Budget:
        memory = self.expression_memory_mebibytes * MIB
        return Budget(self.expression_cpu_milliseconds / 1000, memory)

    def apply(self) -> None:
        """Configure the sandbox and the sources that all actions of the process share."""
        ARTIFACTS.configure(self.registries, self.helm)
        SANDBOX.configure(self.expressions)
        SANDBOX.start()


def print_admission_policies(file: Path) -> int:
    """Print the admission policies of the policies in a file. Returns the exit code."""
    try:
        policies = [
            POLICY_TYPES[manifest["kind"]].read(manifest)
            for manifest in read_all_yaml(file.read_text())
        ]
        printed = [obj for policy in policies for obj in admission_policies(policy)]
    except (OSError, ValueError, KeyError, yaml.YAMLError, NotAdmissibleError) as error:
        sys.stderr.write(f"{NAME}: {file}: {error}\n")
        return 1
    sys.stdout.write(yaml.safe_dump_all(printed, sort_keys=False))
    return 0


def main() -> None:
    """Serve until SIGTERM, or print admission policies: `admission-policy FILE`."""
    match sys.argv[1:]:
        case ["admission-policy", file]:
            sys.exit(print_admission_policies(Path(file)))
        case _:
            pass
    also = "With `admission-policy FILE`, print admission policies instead."
    options = read_options(LifecycleOptions, NAME, more=also)
    options.apply()
    serve(build(Engine(Config.find, options.engine)), options)


if __name__ == "__main__":
    main()
