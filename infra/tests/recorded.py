"""Runs a program without an engine and records its resources."""

# The SDK leaves requests and functions of programs without a type.
# pyright: reportUnknownMemberType=false

import asyncio
import runpy
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import pulumi
import yaml
from pulumi.runtime import mocks
from pulumi.runtime.mocks import MockMonitor, MockResourceArgs, Mocks

PROJECTS: Final = Path(__file__).parents[1]
SECRET = "1b47061264138c4ac30d75fd1eb44270"
"""The SDK's mark of a secret."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A resource of a program."""

    name: str
    type: str
    parent: str
    """Name of its parent. Empty for children of the stack."""
    dependencies: frozenset[str]
    """Names of its dependencies."""
    inputs: dict[str, Any]
    secrets: frozenset[str]
    """Inputs that are secrets."""


class _Answers(Mocks):
    def __init__(self, outputs: dict[str, dict[str, Any]]) -> None:
        self._outputs = outputs

    def call(self, args: mocks.MockCallArgs) -> Any:
        del args
        return {}

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        inputs = cast("dict[str, Any]", args.inputs)
        return f"{args.name}-id", {**inputs, **self._outputs.get(args.typ, {})}


class _Recorder(MockMonitor):
    def __init__(self, answers: Mocks) -> None:
        super().__init__(answers)
        self.requests: list[Any] = []

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802 - the SDK's name
        self.requests.append(request)
        # The SDK would create a loop for each of its threads and leave it open.
        with _own_loop():
            return super().RegisterResource(request)


@contextmanager
def _own_loop() -> Generator[None]:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        asyncio.set_event_loop(None)


def project_config(folder: str) -> dict[str, dict[str, Any]]:
    """The settings of a project, with their defaults."""
    return yaml.safe_load((PROJECTS / folder / "Pulumi.yaml").read_text())["config"]


def program(folder: str, **settings: str) -> Callable[[], None]:
    """A program with settings, and the defaults of its project for the others."""
    defaults = {
        name: str(described["default"]).lower()
        if described["type"] == "boolean"
        else str(described["default"])
        for name, described in project_config(folder).items()
        if "default" in described
    }

    def run() -> None:
        values = {f"project:{name}": value for name, value in (defaults | settings).items()}
        pulumi.runtime.set_all_config(values)
        runpy.run_path(str(PROJECTS / folder / "__main__.py"))

    return run


def registered(
    program: Callable[[], None], outputs: dict[str, dict[str, Any]] | None = None
) -> dict[str, Registered]:
    """Resources of a program by name, with `outputs` for each resource type."""
    answers = _Answers(outputs or {})
    recorder = _Recorder(answers)

    @pulumi.runtime.test
    def run() -> None:
        program()

    def with_own_loop() -> None:
        with _own_loop():
            mocks.set_mocks(answers, project="project", stack="stack", monitor=recorder)
            run()

    # pytest has a loop of its own in this thread.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(with_own_loop).result()
    return {each.name: each for each in map(_registered, recorder.requests)}


def _registered(request: Any) -> Registered:
    inputs = {key: _plain(value) for key, value in request.object.fields.items()}
    return Registered(
        name=request.name,
        type=request.type,
        parent=_name(request.parent),
        dependencies=frozenset(_names(request.dependencies)),
        inputs=inputs,
        secrets=frozenset(
            key for key, value in request.object.fields.items() if SECRET in str(value)
        ),
    )


def _plain(value: Any) -> Any:
    match value.WhichOneof("kind"):
        case "struct_value":
            fields = value.struct_value.fields
            if "value" in fields and SECRET in str(fields.values()):
                return _plain(fields["value"])
            return {key: _plain(each) for key, each in fields.items()}
        case "list_value":
            return [_plain(each) for each in value.list_value.values]
        case "null_value":
            return None
        case kind:
            return getattr(value, kind)


def _names(urns: Iterable[str]) -> Iterable[str]:
    return map(_name, urns)


def _name(urn: str) -> str:
    return urn.rpartition("::")[2]
