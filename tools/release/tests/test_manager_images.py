"""Images of Cluster API's managers: what is in them, and that they do not change by themselves."""

import hashlib
from pathlib import Path

import pytest
from capelin_release.downloads import Downloads
from capelin_release.image import ImageError
from capelin_release.manager_images import ManagerImage, add_manager_images
from capelin_release.oci import Store
from capelin_release.programs import LockedProgram

from tools.release.tests.packages import an_elf

MACHINES = {"amd64": 62, "arm64": 183}


def images(
    folder: Path, monkeypatch: pytest.MonkeyPatch, machines: dict[str, int], created: int = 0
) -> tuple[Store, list[ManagerImage]]:
    """Images of programs that are no more than their headers."""
    downloads = folder / "downloads"
    downloads.mkdir(parents=True)
    digests: dict[str, str] = {}
    for architecture, machine in machines.items():
        content = an_elf(machine)
        digests[architecture] = hashlib.sha256(content).hexdigest()
        (downloads / digests[architecture]).write_bytes(content)

    def read(name: str) -> LockedProgram:
        return LockedProgram(name, "v1.14.0", "go1.26.8", digests)

    monkeypatch.setattr(LockedProgram, "read", staticmethod(read))
    store = Store(folder / "store")
    return store, [*add_manager_images(store, created, Downloads(downloads))]


def test_one_program_per_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, (core, bootstrap) = images(tmp_path, monkeypatch, MACHINES)
    names = [image.index.annotations for image in (core, bootstrap)]
    assert names == [
        {"org.opencontainers.image.ref.name": f"cluster-api/{name}:v1.14.0"}
        for name in ("cluster-api-controller", "kubeadm-bootstrap-controller")
    ]
    manifests = store.read_json(core.index.digest)["manifests"]
    assert [each["platform"]["architecture"] for each in manifests] == ["amd64", "arm64"]
    manifest = store.read_json(manifests[0]["digest"])
    config = store.read_json(manifest["config"]["digest"])["config"]
    assert (config["User"], config["Entrypoint"]) == ("65532:65532", ["/manager"])
    (package,) = core.bills["arm64"]["components"]
    assert package["purl"] == "pkg:golang/sigs.k8s.io/cluster-api@v1.14.0"
    assert [file["name"] for file in package["components"]] == ["/manager"]


def test_stable_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers: list[object] = []
    for created in (1, 2):
        store, (core, _) = images(tmp_path / str(created), monkeypatch, MACHINES, created)
        manifest = store.read_json(store.read_json(core.index.digest)["manifests"][0]["digest"])
        layers.append(manifest["layers"])
    assert layers[0] == layers[1]


def test_wrong_processor_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImageError, match="a program for another processor"):
        images(tmp_path, monkeypatch, {"amd64": 183, "arm64": 62})


def test_every_manager_is_locked() -> None:
    for name in ("cluster-api-controller", "kubeadm-bootstrap-controller"):
        program = LockedProgram.read(name)
        assert program.sha256.keys() == MACHINES.keys()
        assert program.package.url == "pkg:golang/sigs.k8s.io/cluster-api@v1.14.0"
