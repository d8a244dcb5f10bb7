"""An environment of `capelin up` whose machines can be containers."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from capelin_cli.clusters.up import UpOptions, bring_up
from capelin_cli.environments.containers import ContainerMachines, find_container_machines
from capelin_cli.terminal.checklist import Checklist
from capelin_embedded.management import Environment, UpRequest
from rich.console import Console

from tests.integration.homes import Home

STORAGE = "default-storage.yaml"


def helper_image(machines: ContainerMachines) -> str:
    """The image of the node with a shell."""
    return machines.manifests[STORAGE].partition("--helper-image")[2].split()[1]


@asynccontextmanager
async def container_environment(
    home: Home, image: str, request: UpRequest
) -> AsyncGenerator[tuple[Environment, ContainerMachines]]:
    """An environment without clusters. It is removed with its containers.

    Args:
        home: The home folder of its user.
        image: The images of machines, separated by commas. New ones have the first image.
        request: Its providers and settings.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(home.folder))
        machines = await find_container_machines("containers", image, Checklist(Console()))
        assert machines is not None
        environment = home.environment()
        options = UpOptions(
            environment.name, request, None, machines="containers", machine_image=image
        )
        try:
            await bring_up(options, Console())
            yield environment, machines
        finally:
            if environment.exists:
                ended = await home.capelin("down", "--yes")
                assert ended.code == 0, ended.err
