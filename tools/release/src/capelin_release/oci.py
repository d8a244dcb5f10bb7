"""OCI images without a container engine: blobs, manifests, indexes, layouts and archives."""

import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from capelin.errors import UserError

from capelin_release.files import File, Layer, Package, write_tar

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
EMPTY = "application/vnd.oci.empty.v1+json"
REFERENCE = "org.opencontainers.image.ref.name"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
_BUILDER = Package("image", "capelin-image", "1", "pkg:generic/capelin-image@1")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What points at a blob: its type, digest and size."""

    media_type: str
    digest: str
    size: int
    platform: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None

    def as_json(self) -> dict[str, Any]:
        """As manifests and indexes hold it."""
        optional = {"platform": self.platform, "annotations": self.annotations}
        return {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
            **{key: dict(value) for key, value in optional.items() if value},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Descriptor":
        """A descriptor of a manifest or an index."""
        return cls(
            value["mediaType"],
            value["digest"],
            value["size"],
            value.get("platform"),
            value.get("annotations"),
        )

    @property
    def name(self) -> str:
        """Its name in a layout, as in `charts/capelin:0.2.0`."""
        return (self.annotations or {}).get(REFERENCE, "")

    def named(self, reference: str) -> "Descriptor":
        """The same under a name in a layout."""
        return replace(self, annotations={**(self.annotations or {}), REFERENCE: reference})


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A compressed layer: its blob, the digest of its tar archive, and what it holds."""

    descriptor: Descriptor
    diff_id: str
    name: str
    time: int


@dataclass(frozen=True, slots=True)
class Image:
    """One platform's image."""

    manifest: Descriptor
    config: Descriptor
    layers: tuple[StoredLayer, ...]
    architecture: str


def hex_of(digest: str) -> str:
    """The hexadecimal part of a SHA-256 digest.

    Raises:
        UserError: it is not one.
    """
    if _DIGEST.fullmatch(digest) is None:
        raise UserError(
            f"{digest!r} is not a digest.",
            reason="Blobs are named by sha256: and 64 hexadecimal digits.",
        )
    return digest.removeprefix("sha256:")


class _Hashing:
    """A stream that hashes what passes through it."""

    def __init__(self, to: BinaryIO) -> None:
        self._to = to
        self.sha256 = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.size += len(data)
        return self._to.write(data)

    def flush(self) -> None:
        self._to.flush()


class Store:
    """An OCI image layout in a folder: blobs by their digests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._blobs = folder / "blobs" / "sha256"
        self._blobs.mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """The file of a blob.

        Raises:
            UserError: it is not a digest; a bundle from elsewhere could name any file here.
        """
        return self._blobs / hex_of(digest)

    def read_json(self, digest: str) -> dict[str, Any]:
        """A manifest, index or configuration."""
        return cast("dict[str, Any]", json.loads(self.path(digest).read_bytes()))

    def add(
        self, data: bytes, media_type: str, platform: Mapping[str, str] | None = None
    ) -> Descriptor:
        """Store a blob."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.path(digest).write_bytes(data)
        return Descriptor(media_type, digest, len(data), platform)

    def add_json(
        self, value: Mapping[str, Any], media_type: str, platform: Mapping[str, str] | None = None
    ) -> Descriptor:
        """Store JSON in its one deterministic form."""
        return self.add(canonical_json(value), media_type, platform)

    def add_layer(self, layer: Layer) -> StoredLayer:
        """Store a layer. Its diff id depends on the files alone; its digest also on zlib."""
        partial = self._blobs / f"{layer.name}.partial"
        with partial.open("wb") as file:
            compressed = _Hashing(file)
            with gzip.GzipFile("", "wb", 6, cast("BinaryIO", compressed), mtime=0) as stream:
                plain = _Hashing(cast("BinaryIO", stream))
                write_tar(layer.entries(_BUILDER), layer.time, cast("BinaryIO", plain))
        digest = f"sha256:{compressed.sha256.hexdigest()}"
        partial.rename(self.path(digest))
        descriptor = Descriptor(LAYER, digest, compressed.size)
        return StoredLayer(descriptor, f"sha256:{plain.sha256.hexdigest()}", layer.name, layer.time)

    def add_image(
        self,
        layers: Sequence[StoredLayer],
        *,
        architecture: str,
        config: Mapping[str, Any],
        created: int,
    ) -> Image:
        """Store an image's configuration and manifest; `config` is what a container starts with."""
        platform = {"architecture": architecture, "os": "linux"}
        stored = self.add_json(
            {
                **platform,
                "created": timestamp(created),
                "config": config,
                "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
                "history": [
                    {"created": timestamp(layer.time), "created_by": layer.name} for layer in layers
                ],
            },
            CONFIG,
        )
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": stored.as_json(),
            "layers": [layer.descriptor.as_json() for layer in layers],
            "annotations": config.get("Labels", {}),
        }
        return Image(
            self.add_json(manifest, MANIFEST, platform), stored, tuple(layers), architecture
        )

    def add_index(
        self, manifests: Iterable[Descriptor], annotations: Mapping[str, str]
    ) -> Descriptor:
        """Store an index, such as of one image for several platforms."""
        index = {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [manifest.as_json() for manifest in manifests],
            "annotations": dict(annotations),
        }
        return self.add_json(index, INDEX)

    def add_artifact(
        self, artifact_type: str, files: Mapping[str, tuple[str, bytes]], created: int
    ) -> Descriptor:
        """Store files as an OCI artifact: by name, each with its media type."""
        layers = [
            replace(
                self.add(data, media_type),
                annotations={"org.opencontainers.image.title": name},
            )
            for name, (media_type, data) in files.items()
        ]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": artifact_type,
            "config": self.add(b"{}", EMPTY).as_json(),
            "layers": [layer.as_json() for layer in layers],
            "annotations": {"org.opencontainers.image.created": timestamp(created)},
        }
        return self.add_json(manifest, MANIFEST)

    def write_archive(
        self, file: Path, entries: Sequence[Descriptor], time: int, docker: bytes | None = None
    ) -> None:
        """Write a layout of these entries, with all that they need, as a tar archive."""
        needed = sorted({blob.digest for entry in entries for blob in self.reachable(entry)})
        members: dict[str, bytes | Path] = {
            "oci-layout": _LAYOUT,
            "index.json": _layout_index(entries),
            **({} if docker is None else {"manifest.json": docker}),
            **{f"blobs/sha256/{hex_of(digest)}": self.path(digest) for digest in needed},
        }
        with file.open("wb") as stream:
            files = ((path, File(_BUILDER, 0o644, content=data)) for path, data in members.items())
            write_tar(files, time, stream)

    def reachable(self, entry: Descriptor) -> Iterator[Descriptor]:
        """A manifest or index with everything below it: the lowest first, for a push."""
        if entry.media_type in {INDEX, MANIFEST}:
            value = self.read_json(entry.digest)
            below = value.get("manifests") or [value["config"], *value["layers"]]
            for child in below:
                yield from self.reachable(Descriptor.from_json(child))
        yield entry


def docker_manifest(image: Image, reference: str) -> bytes:
    """The `manifest.json` by which `docker load` reads an archive in every version."""
    entry = {
        "Config": _blob(image.config.digest),
        "RepoTags": [reference],
        "Layers": [_blob(layer.descriptor.digest) for layer in image.layers],
    }
    return canonical_json([entry])


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def timestamp(seconds: int) -> str:
    """Seconds since 1970 as RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _layout_index(entries: Sequence[Descriptor]) -> bytes:
    return canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": [entry.as_json() for entry in entries],
        }
    )


def _blob(digest: str) -> str:
    return "blobs/sha256/" + hex_of(digest)
