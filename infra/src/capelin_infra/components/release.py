"""Component files of a release, for `yaml.v2.ConfigGroup`."""

from collections.abc import Mapping
from pathlib import Path

from capelin.api import Unstructured
from capelin.errors import MissingError
from capelin.versions import Version
from capelin_embedded.management import render_template


def release_objects(
    folder: Path, label: str, variables: Mapping[str, str] | None = None
) -> list[Unstructured]:
    """The objects of the newest version of a provider, or of cert-manager.

    Args:
        folder: The folder `clusterctl` of a release: `LABEL/VERSION/...-components.yaml`.
        label: Such as `control-plane-capelin`, `cluster-api` or `cert-manager`.
        variables: The variables that clusterctl takes from the environment.

    Raises:
        MissingError: The release does not have it.
    """
    names = (f"{label}.yaml", "*-components.yaml")
    files = [file for name in names for file in folder.glob(f"{label}/v*/{name}")]
    if not files:
        raise MissingError(
            f"{folder} has no {label}.",
            reason=f"It has {', '.join(sorted(it.name for it in folder.glob('*'))) or 'nothing'}.",
            hint="Build a release with nox -s release, or unpack a published one.",
        )
    newest = max(files, key=lambda file: Version.parse(file.parent.name))
    return render_template(newest.read_text(), variables or {})
