"""`capelin versions`: the Kubernetes versions that clusters can have here."""

from dataclasses import dataclass

from capelin.embedded.binaries import DEFAULT_KUBERNETES, KNOWN_KUBERNETES, TESTED_KUBERNETES
from capelin.embedded.management import workload_programs

from capelin_infra.environments.program_cache import is_cached
from capelin_infra.terminal.tables import Column, Format, print_list


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version."""

    version: str
    cached: bool
    """Whether the programs of a cluster's control plane are on this machine."""

    @property
    def note(self) -> str:
        """What is special about it."""
        notes = (
            ("default of new environments", self.version == DEFAULT_KUBERNETES),
            ("tested with every change", self.version in TESTED_KUBERNETES),
            ("latest", self.version == KNOWN_KUBERNETES[-1]),
        )
        return ", ".join(note for note, applies in notes if applies)


def show_versions(output: Format) -> None:
    """Print the versions, oldest first."""
    rows = [
        VersionRow(version, is_cached(workload_programs(version))) for version in KNOWN_KUBERNETES
    ]
    columns = (
        Column[VersionRow]("VERSION", lambda row: row.version),
        Column[VersionRow]("IN CACHE", lambda row: "yes" if row.cached else "no"),
        Column[VersionRow]("NOTE", lambda row: row.note),
    )

    def data(row: VersionRow) -> object:
        return {
            "version": row.version,
            "cached": row.cached,
            "default": row.version == DEFAULT_KUBERNETES,
            "tested": row.version in TESTED_KUBERNETES,
        }

    print_list(rows, columns, data, output)
