"""The kind cluster of an environment: create, keep, restart, reject, lose."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from capelin.errors import BusyError, InvalidInputError, MissingError
from capelin_cli.environments.kind_target import KindOptions, in_kind_cluster, kind_cluster_of
from capelin_cli.kind import KindCommands, NodeContainer
from capelin_cli.terminal.checklist import Checklist
from capelin_cli.terminal.waiting import Deadline
from capelin_embedded.management import Environment, Settings, UpRequest
from rich.console import Console

NAME = "capelin-lab"


class FakeKind(KindCommands):
    """kind clusters in memory, and the calls to them."""

    def __init__(self, *nodes: NodeContainer) -> None:
        super().__init__()
        self.containers = [*nodes]
        self.calls: list[str] = []
        self.config: dict[str, Any] = {}

    async def create(self, config: dict[str, Any], seconds: float, show: Any) -> None:
        del seconds
        show("Preparing nodes")
        self.calls.append(f"create {config['name']}")
        self.config = config
        self.containers = [node(running=True)]

    async def delete(self, name: str) -> None:
        self.calls.append(f"delete {name}")
        self.containers = []

    async def kubeconfig(self, name: str) -> str:
        return f"kubeconfig of {name}"

    async def nodes(self, name: str) -> list[NodeContainer]:
        assert name == NAME
        return self.containers

    async def start(
        self, name: str, nodes: Sequence[NodeContainer], seconds: float, show: Any
    ) -> None:
        assert name == NAME
        assert seconds > 0
        del show
        self.calls += [f"start {node.name}" for node in nodes if not node.running]


def node(*, running: bool) -> NodeContainer:
    return NodeContainer(f"{NAME}-control-plane", "control-plane", "node:v1", running)


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "capelin" / "lab")


def brought_up(environment: Environment, *, note: bool = True) -> None:
    environment.make_folders()
    environment.write_settings(Settings(kubernetes_version="v1.34.4"))
    if note:
        (environment.folder / "kind-cluster").write_text(NAME)


async def enter(
    environment: Environment, kind: FakeKind, options: KindOptions | None = None
) -> str:
    """The destination of the kubeconfig."""
    checklist = Checklist(Console(quiet=True))
    async with in_kind_cluster(
        environment, UpRequest(providers=("dev",)), options, checklist, Deadline(10), commands=kind
    ) as request:
        assert (request.target, request.providers) == ("existing", ("dev",))
        assert request.kubeconfig is not None
        assert request.kubeconfig.stat().st_mode & 0o077 == 0
        return request.kubeconfig.read_text()


async def test_a_new_environment_creates_a_kind_cluster(environment: Environment) -> None:
    kind = FakeKind()
    assert kind_cluster_of(environment) is None
    assert await enter(environment, kind, KindOptions("node:v2")) == f"kubeconfig of {NAME}"
    assert kind.calls == [f"create {NAME}"]
    assert [node["image"] for node in kind.config["nodes"]] == ["node:v2"]
    assert kind_cluster_of(environment) == NAME


async def test_a_stopped_kind_cluster_restarts(environment: Environment) -> None:
    brought_up(environment)
    kind = FakeKind(node(running=False))
    await enter(environment, kind)
    assert kind.calls == [f"start {NAME}-control-plane"]


async def test_an_incomplete_kind_cluster_is_recreated(environment: Environment) -> None:
    kind = FakeKind()
    await enter(environment, kind, KindOptions())
    await enter(environment, kind, KindOptions())
    assert kind.calls == [f"create {NAME}", f"delete {NAME}", f"create {NAME}"]


async def test_a_foreign_kind_cluster_is_not_used(environment: Environment) -> None:
    kind = FakeKind(node(running=True))
    with pytest.raises(BusyError, match="There is a kind cluster capelin-lab already"):
        await enter(environment, kind, KindOptions())
    assert kind.calls == []
    assert kind_cluster_of(environment) is None


async def test_an_environment_keeps_its_target(environment: Environment) -> None:
    brought_up(environment, note=False)
    with pytest.raises(InvalidInputError, match="has the target process"):
        await enter(environment, FakeKind(), KindOptions())


async def test_removed_cluster_is_reported(
    environment: Environment,
) -> None:
    brought_up(environment)
    kind = FakeKind()
    with pytest.raises(MissingError) as refused:
        await enter(environment, kind, KindOptions())
    assert refused.value.hint == "Remove the rest with capelin down -e lab, then start again."
    assert kind.calls == []
