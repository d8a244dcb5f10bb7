"""The smallest example of an extension: its handler, its size, and conformance."""

import importlib.util
import sys
from pathlib import Path

from capelin.runtime import Extension
from capelin.runtime.client import Endpoint
from capelin.runtime.v1alpha1 import BeforeClusterDelete
from capelin.testing.extensions import fake_request, response_of
from capelin_conformance.extensions import check_extension

from .server_process import CA, certificate, serving, write

PROGRAM = Path(__file__).parents[3] / "examples" / "02-extension" / "keep.py"


def example() -> Extension:
    spec = importlib.util.spec_from_file_location("keep", PROGRAM)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["keep"] = module
    spec.loader.exec_module(module)
    return module.ext


def test_the_example_has_at_most_thirty_lines() -> None:
    assert sum(bool(line.strip()) for line in PROGRAM.read_text().splitlines()) <= 30


async def test_a_protected_cluster_blocks_its_deletion_with_a_message() -> None:
    request = fake_request(BeforeClusterDelete)
    request["cluster"]["metadata"]["annotations"] = {"example.com/keep": "production"}
    response = await response_of(example(), "not-protected", request)
    assert response.retry_after_seconds == 5
    assert response.message == "the cluster is protected: production"
    assert (await response_of(example(), "not-protected")).retry_after_seconds == 0


async def test_the_example_conforms(tmp_path: Path) -> None:
    write(tmp_path, certificate())
    with serving(tmp_path, program=PROGRAM) as server:
        endpoint = Endpoint("127.0.0.1", server.port, ca=CA.certificate_pem)
        report = await check_extension(endpoint)
    assert report.passed
    assert report.failed == []
    assert [handler.name for handler in report.handlers] == ["not-protected"]
