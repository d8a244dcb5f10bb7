"""An engine for each test, and the name of a kind cluster, which is deleted afterwards."""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from uuid import uuid4

import pytest
from capelin_embedded.binaries import NotObtainableError
from capelin_embedded.management import all_environments, remove_environment

from tests.e2e import kind_cluster

from .bed import Bed


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncGenerator[Bed]:
    try:
        bed = await Bed.create(tmp_path)
    except NotObtainableError as error:
        pytest.fail(f"the Pulumi CLI is not available: {error}")
    yield bed
    for environment in all_environments(bed.variables):
        await remove_environment(environment)


@pytest.fixture
def kind_name() -> Generator[str]:
    """A name for a kind cluster, which is deleted afterwards."""
    if why := kind_cluster.missing():
        pytest.fail(why)
    name = f"pulumi-{uuid4().hex[:6]}"
    yield name
    kind_cluster.delete(name)
