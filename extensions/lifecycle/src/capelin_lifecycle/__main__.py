"""The server of the extension, with the reconcilers of its policies."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from capelin.client import AllowedEndpoint, Config, read_endpoints
from capelin.runtime.server import serve
from capelin.yaml import read_all_yaml

from capelin_lifecycle.actions.artifacts import ARTIFACTS
from capelin_lifecycle.admission import NotAdmissibleError, admission_policies
from capelin_lifecycle.api.policies import POLICY_TYPES
from capelin_lifecycle.engine import Engine, EngineOptions
from capelin_lifecycle.hooks import NAME, build
from capelin_lifecycle.sandbox.pool import MIB, SANDBOX, Budget


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the extension's own flags set."""

    engine: EngineOptions
    expressions: Budget
    registries: tuple[AllowedEndpoint, ...] = ()
    helm: Path | None = None

    def apply(self) -> None:
        """Configure the sandbox and the sources that all actions of the process share."""
        ARTIFACTS.configure(self.registries, self.helm)
        SANDBOX.configure(self.expressions)
        SANDBOX.start()


_EPILOG = "`admission-policy FILE` prints admission policies. The flags of every extension follow."


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """The extension's own settings, and the remaining flags for the server."""
    parser = argparse.ArgumentParser(NAME, add_help=False, allow_abbrev=False, epilog=_EPILOG)
    parser.add_argument(
        "--leader-elect",
        nargs="?",
        const="true",
        choices=("true", "false"),
        default=environment.get("CAPELIN_LEADER_ELECT", "false"),
        help="with several replicas, run the reconcilers only on the one that holds a lease",
    )
    parser.add_argument(
        "--in-place-updates",
        nargs="?",
        const="true",
        choices=("true", "false"),
        default=environment.get("CAPELIN_IN_PLACE_UPDATES", "false"),
        help="answer the hooks of updates in place, for machines of the backend Hosts."
        " Cluster API permits one extension for these hooks",
    )
    parser.add_argument(
        "--extension-config",
        default=environment.get("CAPELIN_EXTENSION_CONFIG", NAME),
        help="name of the extension's ExtensionConfig (%(default)s)",
    )
    parser.add_argument(
        "--expression-cpu-milliseconds",
        type=_number(10, 10_000),
        default=environment.get("CAPELIN_EXPRESSION_CPU_MILLISECONDS", "100"),
        help="CPU time that the expressions of a policy may take for a Cluster (%(default)s)",
    )
    parser.add_argument(
        "--expression-memory-mebibytes",
        type=_number(16, 1024),
        default=environment.get("CAPELIN_EXPRESSION_MEMORY_MEBIBYTES", "50"),
        help="memory that the expressions of a policy may need for a Cluster (%(default)s)",
    )
    parser.add_argument(
        "--registries",
        type=_registries,
        default=environment.get("CAPELIN_REGISTRIES", ""),
        help="OCI registries that policies may pull from, with commas between them, such as"
        " https://ghcr.io. https://*.example.com and https://* allow more, except local addresses",
    )
    parser.add_argument(
        "--helm",
        type=_program,
        default=environment.get("CAPELIN_HELM", ""),
        help="path of the program that renders Helm charts (without it, charts are refused)",
    )
    known, others = parser.parse_known_args(arguments)
    if {"-h", "--help"} & set(others):
        parser.print_help()
    options = EngineOptions(
        leader_elect=known.leader_elect == "true",
        extension_config=known.extension_config,
        in_place_updates=known.in_place_updates == "true",
    )
    budget = Budget(
        known.expression_cpu_milliseconds / 1000, known.expression_memory_mebibytes * MIB
    )
    return Settings(options, budget, known.registries, known.helm), others


def _registries(text: str) -> tuple[AllowedEndpoint, ...]:
    try:
        return read_endpoints(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _program(text: str) -> Path | None:
    """The absolute path of a program, or nothing."""
    if not text:
        return None
    path = Path(text)
    if not path.is_absolute() or not os.access(path, os.X_OK):
        raise argparse.ArgumentTypeError(f"{text} is not the absolute path of a program")
    return path


def _number(least: int, most: int) -> Callable[[str], int]:
    """A parser of numbers within bounds."""

    def parse_number(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{number} is not between {least} and {most}")
        return number

    return parse_number


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
    settings, others = parse(sys.argv[1:], os.environ)
    settings.apply()
    serve(build(Engine(Config.find, settings.engine)), others)


if __name__ == "__main__":
    main()
