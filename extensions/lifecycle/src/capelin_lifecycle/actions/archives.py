"""The YAML files in the layers of an artifact, within bounds."""

import io
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from capelin_lifecycle.actions.registry import ArtifactError, Layer

MAX_TEXT: Final = 2**20
"""The most that a file may have: as much as a ConfigMap."""
MAX_UNPACKED: Final = 8 * 2**20
_MAX_FILES: Final = 256
_CHART: Final = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_PROVENANCE: Final = "application/vnd.cncf.helm.chart.provenance.v1.prov"
_ENDINGS: Final = (".yaml", ".yml", ".json")
_PACKED: Final = ("tar+gzip", "tar.gzip")
_TEXTS: Final = frozenset(
    {"application/yaml", "application/x-yaml", "application/json", "text/yaml", "text/x-yaml"}
)


def chart_of(layers: Sequence[Layer]) -> bytes:
    """The archive of the only chart of an artifact.

    Raises:
        ArtifactError: the artifact is not a chart.
    """
    charts = [layer for layer in layers if layer.descriptor.media_type == _CHART]
    if len(charts) != 1:
        raise ArtifactError("it is not a Helm chart")
    return charts[0].content


def texts_of(layers: Sequence[Layer]) -> dict[str, bytes]:
    """The YAML and JSON files of an artifact, by their names.

    Raises:
        ArtifactError: a layer contains something else, or too much.
    """
    texts: dict[str, bytes] = {}
    for number, layer in enumerate(layers):
        blob = layer.descriptor
        if blob.media_type == _PROVENANCE:
            continue
        if blob.media_type == _CHART:
            raise ArtifactError("it is a Helm chart: set chart")
        # ORAS names single files, whatever their type is.
        is_file = blob.title.endswith(_ENDINGS) and not blob.is_folder
        if blob.media_type in _TEXTS or is_file:
            texts[blob.title or f"layer {number}"] = layer.content
        elif blob.media_type.endswith(_PACKED):
            left = MAX_UNPACKED - sum(map(len, texts.values()))
            texts.update(_unpacked(layer.content, left))
        else:
            raise ArtifactError(f"its layer {number} has the unknown type {blob.media_type}")
    if len(texts) > _MAX_FILES:
        raise ArtifactError(f"it has more than {_MAX_FILES} files")
    for name, content in texts.items():
        if len(content) > MAX_TEXT:
            raise ArtifactError(f"{name} has more than {MAX_TEXT // 2**20} MiB")
    return texts


def _unpacked(archive: bytes, most: int) -> Iterator[tuple[str, bytes]]:
    """The YAML and JSON files of an archive. Other files are ignored, and links too.

    Args:
        archive: The archive.
        most: The bytes that all archives of the artifact together may still have.
    """
    unzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        content = unzip.decompress(archive, max(most, 1))
        if not unzip.eof:
            raise ArtifactError(
                f"its archives unpack to more than {MAX_UNPACKED // 2**20} MiB, or one is cut off"
            )
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as files:
            total = 0
            for number, member in enumerate(files):
                # A sparse file is larger than its part of the archive.
                total += member.size
                if number >= 4 * _MAX_FILES or total > most:
                    raise ArtifactError("an archive in it has too many files, or too large ones")
                file = files.extractfile(member) if member.isreg() else None
                if file is not None and member.name.endswith(_ENDINGS):
                    yield member.name.removeprefix("./"), file.read()
    except (tarfile.TarError, EOFError, RecursionError, ValueError, zlib.error):
        raise ArtifactError("an archive in it cannot be unpacked") from None
