"""Machines that are containers, for resources that name their images."""

from collections.abc import Sequence

from capelin_cli.environments.containers import ContainerMachines, find_container_machines
from capelin_cli.terminal.checklist import Checklist
from rich.console import Console


async def container_machines(images: Sequence[str]) -> ContainerMachines | None:
    """The engine with these images of machines. None without images: machines are simulated.

    Raises:
        UnfitMachineError: Machines cannot be containers here.
    """
    if not images:
        return None
    silent = Checklist(Console(quiet=True))
    return await find_container_machines("containers", ",".join(images), silent)
