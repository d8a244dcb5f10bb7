"""Kubernetes' own conformance tests in a Job: their images, their account and their results."""

import re
from typing import Final

from capelin.api import Unstructured
from capelin_embedded.binaries import Binaries

from .go_programs import kubernetes_programs
from .program_images import program_image

_AGNHOST: Final = "registry.k8s.io/e2e-test-images/agnhost:2.56"
"""The image of the tests' pods, of Kubernetes v1.34."""
BUSYBOX: Final = {"/local-path-helper:": "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"}
"""Another image of the tests' pods, by a part of the name of the image that stands for it."""
_ENDED: Final = re.compile(
    r"Ran (\d+) of \d+ Specs.*?(\d+) Passed \| (\d+) Failed \|", re.MULTILINE | re.DOTALL
)


async def conformance_images(version: str) -> dict[str, bytes]:
    """The images of a conformance run, with the files that Kubernetes' Dockerfiles give them."""
    names = ("e2e.test", "ginkgo", "go-runner", "agnhost")
    programs = await kubernetes_programs(version, names)
    folder = "usr/local/bin"
    conformance = {
        f"{folder}/e2e.test": programs["e2e.test"],
        f"{folder}/ginkgo": programs["ginkgo"],
        f"{folder}/kubectl": await Binaries().path("kubectl", version),
        f"{folder}/kubeconformance": programs["go-runner"],
    }
    run, serve = ["kubeconformance"], ["/agnhost"]
    return {
        "conformance": program_image(
            f"registry.k8s.io/conformance:{version}", conformance, Entrypoint=run
        ),
        "agnhost": program_image(
            _AGNHOST, {"agnhost": programs["agnhost"]}, Entrypoint=serve, Cmd=["pause"]
        ),
    }


def account_manifests(name: str, role: str) -> list[Unstructured]:
    """A ServiceAccount with a role in the whole cluster."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}],
    }
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": "kube-system"},
    }
    return [account, binding]


def numbers_of_tests(log: str) -> tuple[int, int, int]:
    """How many tests ran, passed and failed, by the end of a log."""
    found = _ENDED.search(log)
    assert found is not None, log
    ran, passed, failed = map(int, found.groups())
    return ran, passed, failed
