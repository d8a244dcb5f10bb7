"""The scan of images and their bills of materials."""

import pytest
from capelin_release.files import File, Package
from capelin_release.programs import go_modules
from capelin_release.sbom import bill_of_materials
from capelin_release.scan import elf_machine, scan

from tools.release.tests.packages import PACKAGE, a_file, an_elf

KEY = b"-----BEGIN EC PRIVATE KEY-----\n" + b"A" * 64
TOKEN = b"ghp_" + b"a1B2" * 9


@pytest.mark.parametrize(
    ("path", "file", "problem"),
    [
        ("usr/bin/su", a_file(mode=0o4755), "setuid"),
        ("usr/bin/wall", a_file(mode=0o2755), "setgid"),
        ("etc/motd", a_file(mode=0o666), "world-writable"),
        ("srv", File(PACKAGE, 0o777, "folder"), "world-writable"),
        ("usr/bin/dash", a_file(mode=0o755), "a shell"),
        ("bin/sh", File(PACKAGE, 0o777, "link", target="busybox"), "a shell"),
        ("usr/sbin/update", a_file(b"#!/bin/sh\n", 0o755), "a shell script"),
        ("usr/lib/key.pem", a_file(b"x\n" + KEY), "a private key"),
        ("home/.netrc", a_file(), "named as a secret"),
        ("a.py", a_file(b"token = '" + TOKEN + b"'"), "a token"),
        ("a.py", a_file(b"AKIA" + b"ABCDEFGHIJKLMNOP"), "an access key"),
        ("a.py", a_file(b"eyJ" + b"a" * 20 + b".eyJ" + b"b" * 20 + b"." + b"c" * 20), "a signed"),
        ("pip.conf", a_file(b"https://me:hunter22@example.com"), "a password in a URL"),
        ("lib/x.so", a_file(an_elf(183)), "a program for another processor (ELF machine 183)"),
    ],
)
def test_the_scan_reports_forbidden_files(path: str, file: File, problem: str) -> None:
    (finding,) = scan({path: file}, "amd64")
    assert finding.problem.startswith(problem)
    assert str(finding).startswith(f"/{path} (sample): ")


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("tmp", File(PACKAGE, 0o1777, "folder")),
        ("lib", File(PACKAGE, 0o777, "link", target="usr/lib")),
        ("lib/x.so", a_file(an_elf(62))),
        ("lib/pem.py", a_file(b'START = b"-----BEGIN PRIVATE KEY-----"')),
        ("lib/urls.py", a_file(b"https://{user}:{password}@host")),
        ("usr/share/sh", a_file()),
        ("install.sh", a_file(b"#!/bin/sh\n", 0o644)),
    ],
)
def test_the_scan_accepts_allowed_files(path: str, file: File) -> None:
    assert scan({path: file}, "amd64") == []


def test_the_architecture_comes_from_the_elf_header() -> None:
    assert elf_machine(an_elf(62)) == 62
    assert elf_machine(b"#!/usr/bin/python3") is None


def test_an_sbom_names_the_package_of_every_file() -> None:
    image = Package("image", "fish", "1.0", "pkg:oci/fish@1.0?arch=amd64")
    go = Package("go", "kwok", "v1", "pkg:golang/sigs.k8s.io/kwok@v1")
    files = {
        "usr/lib": File(PACKAGE, 0o755, "folder"),
        "usr/lib/a.py": a_file(b"a"),
        "etc/passwd": File(image, 0o644, content=b"root"),
        "usr/local/bin/kwok": File(
            go, 0o755, content=a_go_program("dep\tgolang.org/x/net\tv2\th1:")
        ),
    }
    bill = bill_of_materials(files, image=image, digest="sha256:" + "0" * 64, created=0)

    named = {
        file["name"]: component["purl"]
        for component in [bill["metadata"]["component"], *bill["components"]]
        for file in component["components"]
        if file["type"] == "file"
    }
    assert named == {
        "/usr/lib/a.py": PACKAGE.url,
        "/etc/passwd": image.url,
        "/usr/local/bin/kwok": go.url,
    }
    kwok = bill["components"][0]
    assert [c["purl"] for c in kwok["components"][1:]] == ["pkg:golang/golang.org/x/net@v2"]
    assert bill == bill_of_materials(files, image=image, digest="sha256:" + "0" * 64, created=0)


def test_an_sbom_lists_the_modules_of_a_go_binary() -> None:
    program = a_go_program(
        "path\tsigs.k8s.io/kwok/cmd/kwok\nmod\tbuild\t(devel)\n"
        "dep\tk8s.io/api\tv0.1\th1:x\ndep\told\tv1\n=>\tnew\tv2\th1:y\n"
    )
    assert go_modules(program) == [("k8s.io/api", "v0.1"), ("new", "v2")]
    assert go_modules(b"#!/usr/bin/python3") == []


def a_go_program(modules: str) -> bytes:
    start = bytes.fromhex("3077af0c9274080241e1c107e6d618e6")
    end = bytes.fromhex("f932433186182072008242104116d8f2")
    return b"code" + start + modules.encode() + end + b"more"
