"""Layouts and archives."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

from capelin_release.build import write_checksums
from capelin_release.files import File, Layer
from capelin_release.oci import Descriptor, Store, named

from tools.release.tests.packages import PACKAGE, a_file


def a_layer(*paths: str) -> Layer:
    layer = Layer("application", 1_700_000_000)
    for path in paths:
        layer.add(path, a_file(path.encode()))
    return layer


def an_image(store: Store, layer: Layer) -> Descriptor:
    return store.add_image(
        [store.add_layer(layer)],
        architecture="amd64",
        config={"Labels": {"org.opencontainers.image.title": "fish"}},
        created=1_700_000_000,
    )


def test_a_layer_depends_only_on_its_files(tmp_path: Path) -> None:
    one = Store(tmp_path / "one").add_layer(a_layer("b/c", "a"))
    other = Store(tmp_path / "other").add_layer(a_layer("a", "b/c"))
    assert one == other

    data = Store(tmp_path / "one").path(one.descriptor["digest"]).read_bytes()
    plain = gzip.decompress(data)
    assert one.diff_id == f"sha256:{hashlib.sha256(plain).hexdigest()}"
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        members = archive.getmembers()
    assert [(m.name, m.uid, m.mtime) for m in members] == [
        ("a", 0, 1_700_000_000),
        ("b", 0, 1_700_000_000),
        ("b/c", 0, 1_700_000_000),
    ]


def test_a_layer_keeps_modes_owners_and_links(tmp_path: Path) -> None:
    layer = Layer("application", 0)
    layer.add("bin", File(PACKAGE, 0o777, "link", target="usr/bin"))
    layer.add("home/nonroot", File(PACKAGE, 0o700, "folder", owner=65532))
    store = Store(tmp_path)
    stored = store.add_layer(layer)
    with tarfile.open(store.path(stored.descriptor["digest"])) as archive:
        link, parent, home = archive.getmembers()
    assert (link.issym(), link.linkname) == (True, "usr/bin")
    assert (parent.isdir(), parent.uid) == (True, 0)
    assert (home.mode, home.uid, home.gid) == (0o700, 65532, 65532)


def test_an_archive_is_valid_for_docker_and_as_an_oci_layout(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    image = an_image(store, a_layer("a"))
    file = tmp_path / "fish.tar"
    store.write_archive(file, [named(image, "v1")], 0, docker="example.com/fish:v1")

    with tarfile.open(file) as archive:
        names = archive.getnames()
        stream = archive.extractfile("manifest.json")
        (entry,) = json.loads(stream.read() if stream else b"")
        index = archive.extractfile("index.json")
        (read,) = json.loads(index.read() if index else b"")["manifests"]
    assert entry["RepoTags"] == ["example.com/fish:v1"]
    assert {entry["Config"], *entry["Layers"]} < set(names)
    assert read["digest"] == image["digest"]


def test_the_checksums_contain_every_file(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.tar").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    lines = write_checksums(tmp_path).read_text().splitlines()
    assert lines == [
        f"{hashlib.sha256(b'b').hexdigest()}  b",
        f"{hashlib.sha256(b'a').hexdigest()}  images/a.tar",
    ]
    assert write_checksums(tmp_path).read_text().splitlines() == lines, "not of itself"
