"""The bill of materials of an image, in CycloneDX: every package, and every file's package."""

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from capelin_release.files import File, Package
from capelin_release.oci import timestamp
from capelin_release.programs import go_modules

_NAMESPACE = uuid.UUID("2f3b7c52-3a3e-5e6b-9d5c-4e1f0f2a7c11")


def bill_of_materials(
    files: Mapping[str, File],
    *,
    image: Package,
    digest: str,
    created: int,
) -> dict[str, Any]:
    """The bill of an image. `digest` is that of its manifest.

    Files are components of their package's component, by their paths, with their digests.
    """
    by_package: dict[Package, list[tuple[str, File]]] = {}
    for path, file in sorted(files.items()):
        if file.kind != "folder":
            by_package.setdefault(file.package, []).append((path, file))
    own = by_package.pop(image, [])
    packages = sorted(by_package, key=lambda package: (package.origin, package.name))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, digest)}",
        "version": 1,
        "metadata": {
            "timestamp": timestamp(created),
            "component": {
                "type": "container",
                "bom-ref": image.url,
                "name": image.name,
                "version": image.version,
                "purl": image.url,
                "hashes": [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}],
                "components": [_file_component(path, file) for path, file in own],
            },
        },
        "components": [_component(package, by_package[package]) for package in packages],
        "dependencies": [{"ref": image.url, "dependsOn": sorted(p.url for p in packages)}],
    }


def _component(package: Package, files: Sequence[tuple[str, File]]) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "application" if package.origin == "go" else "library",
        "bom-ref": package.url,
        "name": package.name,
        "version": package.version,
        "purl": package.url,
        "components": [
            *(_file_component(path, file) for path, file in files),
            *_modules(package, files),
        ],
    }
    if package.sha256:
        component["hashes"] = [{"alg": "SHA-256", "content": package.sha256}]
    if package.licenses:
        component["licenses"] = [{"license": {"name": name}} for name in package.licenses]
    return component


def _file_component(path: str, file: File) -> dict[str, Any]:
    component: dict[str, Any] = {"type": "file", "name": f"/{path}"}
    if file.kind == "file":
        digest = hashlib.sha256(file.read()).hexdigest()
        component["hashes"] = [{"alg": "SHA-256", "content": digest}]
    return component


def _modules(package: Package, files: Sequence[tuple[str, File]]) -> list[dict[str, Any]]:
    """The Go modules that are linked into a package's programs."""
    if package.origin != "go":
        return []
    modules = sorted({module for _, file in files for module in go_modules(file.read())})
    return [
        {
            "type": "library",
            "name": name,
            "version": version,
            "purl": f"pkg:golang/{name}@{version}",
        }
        for name, version in modules
    ]
