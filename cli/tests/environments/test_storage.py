"""`capelin migrate` on a real API server."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest
from annotated_types import Ge, Le
from capelin.api import Model, Object, kind
from capelin.api.core import CustomResourceDefinition
from capelin.client import Client, Config
from capelin.errors import InvalidInputError
from capelin_cli.environments.storage import migrate

GROUP = "storage.capelin.test"
NAME = f"rocks.{GROUP}"


class Spec(Model):
    size: Annotated[int, Ge(0), Le(9)] = 1


@kind(group=GROUP, version="v1alpha1", name="Rock")
class Old(Object[Spec, Spec]):
    """A rock."""


@kind(group=GROUP, version="v1", name="Rock")
class New(Object[Spec, Spec]):
    """A rock."""


async def test_a_kind_is_listed_counted_and_migrated(
    kubeconfig: Path,
    namespace: str,
    install_crds: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def printed(*names: str, dry_run: bool = False) -> str:
        capsys.readouterr()
        await migrate(names, "", kubeconfig, None, dry_run=dry_run)
        return capsys.readouterr().out

    install_crds(Old)
    async with Client(Config.from_kubeconfig(kubeconfig)) as client:
        try:
            await client.create(Old.of("a", namespace, spec=Spec()))
            install_crds((Old, New))
            versions = f"{NAME}: objects may be stored in v1alpha1 besides v1"
            assert versions in (await printed()).splitlines()
            assert await printed(NAME, dry_run=True) == f"{versions}; 1 objects to write\n"
            done = f"{NAME}: 1 objects are stored in v1; v1alpha1 can be removed\n"
            assert await printed(NAME) == done
            assert await printed(NAME) == f"{NAME}: all objects are stored in v1\n"
            assert NAME not in await printed()
        finally:
            await client.delete(CustomResourceDefinition, NAME)


async def test_an_unusable_kubeconfig_is_an_error_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="--kubeconfig"):
        await migrate([], "", tmp_path / "missing", None, dry_run=False)
