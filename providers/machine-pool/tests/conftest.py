"""What the tests of the machine pool provider share."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from capelin.embedded.binaries import Binaries
from capelin.testing.run import run_elsewhere
from capelin_machine_pool.provider import provider

CORE_KINDS = ("clusters", "machines", "machinepools")


@pytest.fixture(scope="session")
def provider_crds(install_crds: Callable[..., None]) -> None:
    """The provider's kinds, and those of Cluster API that it reads, on the shared API server."""
    folder: Path = run_elsewhere(Binaries().module_dir("cluster-api"))
    files = [folder / f"core/config/crd/bases/cluster.x-k8s.io_{kind}.yaml" for kind in CORE_KINDS]
    install_crds(*(yaml.safe_load(file.read_text()) for file in files), *provider().crds)
