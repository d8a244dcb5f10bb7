"""Fixtures of the machine pool provider's tests."""

from collections.abc import Callable

import pytest
from capelin_machine_pool.provider import provider


@pytest.fixture(scope="session")
def provider_crds(install_crds: Callable[..., None]) -> None:
    """The provider's kinds, and those of Cluster API that it reads, on the shared API server."""
    install_crds(provider())
