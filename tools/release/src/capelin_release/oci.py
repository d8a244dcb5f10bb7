"""OCI images without a container engine: blobs, manifests, indexes, layouts and archives."""

import gzip
import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from capelin_release.files import BUILDER, File, Layer, write_tar

INDEX: Final = "application/vnd.oci.image.index.v1+json"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
REFERENCE: Final = "org.opencontainers.image.ref.name"

Descriptor = dict[str, Any]
"""A reference to a blob, as in manifests: its `mediaType`, `digest` and `size`."""


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer and its compressed blob."""

    layer: Layer
    descriptor: Descriptor
    diff_id: str
    """The digest of its tar archive."""


class Store:
    """An OCI image layout in a folder: blobs by their digests."""

    def __init__(self, folder: Path) -> None:
        self._blobs = folder / "blobs" / "sha256"
        self._blobs.mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """The file of a blob."""
        return self._blobs / digest.removeprefix("sha256:")

    def read_json(self, entry: Descriptor) -> dict[str, Any]:
        """A manifest, index or configuration."""
        return cast("dict[str, Any]", json.loads(self.path(entry["digest"]).read_bytes()))

    def add(self, data: bytes, media_type: str) -> Descriptor:
        """Store a blob."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.path(digest).write_bytes(data)
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def add_json(self, value: Mapping[str, Any], media_type: str) -> Descriptor:
        """Store JSON in its one deterministic form."""
        return self.add(canonical_json(value), media_type)

    def add_layer(self, layer: Layer) -> StoredLayer:
        """Store a layer. Its diff id depends only on the files, its digest also on zlib."""
        plain, packed = self._blobs / "layer.tar", self._blobs / "layer.tar.gz"
        with plain.open("wb") as stream:
            write_tar(layer.entries(), layer.time, stream)
        with (
            plain.open("rb") as source,
            packed.open("wb") as stream,
            gzip.GzipFile("", "wb", 6, stream, mtime=0) as compressed,
        ):
            shutil.copyfileobj(source, compressed)
        diff_id, digest = (f"sha256:{sha256_of(file)}" for file in (plain, packed))
        descriptor = {"mediaType": LAYER, "digest": digest, "size": packed.stat().st_size}
        plain.unlink()
        packed.rename(self.path(digest))
        return StoredLayer(layer, descriptor, diff_id)

    def add_image(
        self,
        layers: Sequence[StoredLayer],
        *,
        architecture: str,
        config: Mapping[str, Any],
        created: int,
    ) -> Descriptor:
        """Store an image's configuration and manifest. A container starts with `config`."""
        platform = {"architecture": architecture, "os": "linux"}
        stored = self.add_json(
            {
                **platform,
                "created": timestamp(created),
                "config": config,
                "rootfs": {"type": "layers", "diff_ids": [stored.diff_id for stored in layers]},
                "history": [
                    {"created": timestamp(stored.layer.time), "created_by": stored.layer.name}
                    for stored in layers
                ],
            },
            CONFIG,
        )
        manifest = self.add_manifest(
            stored, [stored.descriptor for stored in layers], config["Labels"]
        )
        return {**manifest, "platform": platform}

    def add_manifest(
        self,
        config: Descriptor,
        layers: Sequence[Descriptor],
        annotations: Mapping[str, str],
        **more: str,
    ) -> Descriptor:
        """Store the manifest of an image or another artifact."""
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": layers,
            "annotations": annotations,
            **more,
        }
        return self.add_json(manifest, MANIFEST)

    def add_index(self, manifests: Sequence[Descriptor]) -> Descriptor:
        """Store the index of one image for several platforms, with the image's annotations."""
        annotations = self.read_json(manifests[0])["annotations"]
        return self.add_json({**_index(manifests), "annotations": annotations}, INDEX)

    def write_archive(
        self, file: Path, entries: Sequence[Descriptor], time: int, *, docker: str = ""
    ) -> None:
        """Write a layout of these entries, with all blobs that they need, as a tar archive.

        Args:
            file: The archive.
            entries: Manifests and indexes.
            time: The time of all members, in seconds since 1970.
            docker: The reference of the only entry for `docker load` in every version.
        """
        needed = sorted({digest for entry in entries for digest in self._reachable(entry)})
        members: dict[str, bytes | Path] = {
            "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
            "index.json": canonical_json(_index(entries)),
        }
        if docker:
            manifest = self.read_json(entries[0])
            image = {
                "Config": _blob(manifest["config"]["digest"]),
                "RepoTags": [docker],
                "Layers": [_blob(layer["digest"]) for layer in manifest["layers"]],
            }
            members["manifest.json"] = canonical_json([image])
        members |= {_blob(digest): self.path(digest) for digest in needed}
        with file.open("wb") as stream:
            files = ((path, File(BUILDER, 0o644, content=data)) for path, data in members.items())
            write_tar(files, time, stream)

    def _reachable(self, entry: Descriptor) -> Iterator[str]:
        """The digests of a manifest or index and of everything below it."""
        yield entry["digest"]
        if entry["mediaType"] in {INDEX, MANIFEST}:
            value = self.read_json(entry)
            for child in value.get("manifests") or [value["config"], *value["layers"]]:
                yield from self._reachable(child)


def named(entry: Descriptor, reference: str, **annotations: str) -> Descriptor:
    """An entry under a name in a layout, such as `charts/capelin:0.2.0`."""
    return {**entry, "annotations": {**annotations, REFERENCE: reference}}


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def timestamp(seconds: int) -> str:
    """Seconds since 1970 as RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _index(manifests: Iterable[Descriptor]) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": INDEX, "manifests": [*manifests]}


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
