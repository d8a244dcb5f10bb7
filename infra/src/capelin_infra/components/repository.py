"""Component files of a release, from the folder that clusterctl takes for a repository."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from capelin.api import Unstructured
from capelin.errors import MissingError
from capelin.versions import Version
from capelin_embedded.management import render_template


@dataclass(frozen=True, slots=True)
class ComponentRepository:
    """The folder `clusterctl` of a release: `LABEL/VERSION/...-components.yaml`."""

    folder: Path

    def manifests(
        self,
        label: str,
        variables: Mapping[str, str] | None = None,
        *,
        version: str | None = None,
    ) -> list[Unstructured]:
        """The objects of a provider, or of cert-manager.

        Args:
            label: Such as `control-plane-capelin`, `cluster-api` or `cert-manager`.
            variables: The variables that clusterctl takes from the environment.
            version: Such as `v0.1.0`. By default the newest one.

        Raises:
            MissingError: The repository does not have it.
        """
        names = (f"{label}.yaml", "*-components.yaml")
        versions = {
            file.parent.name: file
            for name in names
            for file in self.folder.glob(f"{label}/v*/{name}")
        }
        chosen = version or max(versions, key=Version.parse, default="")
        if chosen not in versions:
            raise MissingError(
                f"{self.folder} has no {label} {chosen}".rstrip() + ".",
                reason=f"Its versions of {label}: {', '.join(sorted(versions)) or 'none'}.",
                hint="Build a release with nox -s release, or unpack a published one.",
            )
        return render_template(versions[chosen].read_text(), variables or {})
