"""The reference pages, from the code: kinds, commands, flags, labels, Python, metrics, errors."""

import ast
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol, cast

import capelin.contract.labels
import typer
from capelin.api import Unstructured
from capelin.controller.diagnostics import Metrics
from capelin.errors import UserError
from capelin.provider import ENTRY_POINTS, Provider
from capelin_cli.verbs import app
from capelin_cli.verbs.runner import EXIT_CODES
from capelin_conformance.providers import (
    BEHAVIOUR_RULES,
    COMPONENT_RULES,
    CONTRACTS,
    KIND_RULES,
    rules_of,
)
from typer._click.core import Command, Parameter

ROOMS: Final = (
    "capelin.api",
    "capelin.client",
    "capelin.contract",
    "capelin.controller",
    "capelin.provider",
    "capelin.runtime",
    "capelin.runtime.client",
    "capelin_conformance.extensions",
    "capelin_conformance.providers",
    "capelin.pki",
)
"""The packages of the library that providers and extensions import from."""
MANAGERS: Final = ("capelin_control_plane", "capelin_machine_pool", "capelin_lifecycle")
"""The programs of the images, as Python runs them."""
_KEYS: Final = ("LABEL", "ANNOTATION")


@dataclass(frozen=True, slots=True)
class Page:
    """A generated page of the site."""

    path: str
    text: str


class _Collector(Protocol):
    def collect(self) -> Iterator[Any]: ...


def pages() -> list[Page]:
    """All pages of the reference."""
    providers = [cast("Provider", entry.load()()) for entry in entry_points(group=ENTRY_POINTS)]
    providers.sort(key=lambda provider: provider.label)
    return [
        Page("docs/reference/commands.md", commands()),
        *(Page(f"docs/reference/{provider.label}.md", kinds(provider)) for provider in providers),
        Page("docs/reference/flags.md", flags()),
        Page("docs/reference/labels.md", labels()),
        Page("docs/reference/python.md", python()),
        Page("docs/reference/metrics.md", metrics()),
        Page("docs/reference/errors.md", errors()),
        Page("docs/reference/rules.md", rules()),
    ]


def commands() -> str:
    """Every command with its options, with the texts of `--help`."""
    command = typer.main.get_command(app)
    lines = ["# Commands", "", EXIT_CODES, ""]
    for name, leaf in _leaves(command, "capelin"):
        lines += [f"## {name}", "", *_text(leaf.help), ""]
        if rows := [_parameter(each) for each in leaf.params if each.name != "help"]:
            lines += ["| option or argument | description |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _leaves(command: Command, path: str) -> Iterator[tuple[str, Command]]:
    subcommands: dict[str, Command] = getattr(command, "commands", {})
    if not subcommands:
        yield path, command
    for name in sorted(subcommands):
        if not subcommands[name].hidden:
            yield from _leaves(subcommands[name], f"{path} {name}")


def _parameter(parameter: Parameter) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{str(parameter.name).upper()}`"
    return f"| {names} | {_cell(str(getattr(parameter, 'help', '') or ''))} |"


def kinds(provider: Provider) -> str:
    """The kinds of a provider, field by field."""
    lines = [f"# Kinds of {provider.label}", ""]
    lines += [f"`{provider.type}` {provider.name}, {provider.version}.", ""]
    for definition in sorted(provider.crds, key=lambda crd: crd["spec"]["names"]["kind"]):
        names = definition["spec"]["names"]
        for version in definition["spec"]["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            lines += [f"## {names['kind']}", "", *_text(schema.get("description")), ""]
            lines += [f"`{definition['spec']['group']}/{version['name']}`, `{names['plural']}`", ""]
            lines += ["| field | type | description |", "|---|---|---|"]
            for part in ("spec", "status"):
                lines += _fields(part, schema["properties"].get(part, {}))
            lines.append("")
    return "\n".join(lines)


def _fields(path: str, schema: Unstructured) -> Iterator[str]:
    """A row for each field below a schema, deepest last."""
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        notes = [field.get("description", "")]
        if name in required:
            notes.append("Required.")
        if "default" in field:
            notes.append(f"Default: `{field['default']}`.")
        if "enum" in field:
            notes.append("One of " + ", ".join(f"`{value}`" for value in field["enum"]) + ".")
        says = _cell(" ".join(filter(None, notes)))
        yield f"| `{path}.{name}` | {_type(field)} | {says} |"
        below = field
        suffix = ""
        while "items" in below:
            below, suffix = below["items"], suffix + "[]"
        yield from _fields(f"{path}.{name}{suffix}", below)


def _type(field: Unstructured) -> str:
    if "items" in field:
        return f"list of {_type(field['items'])}"
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if "additionalProperties" in field:
        return "map"
    return str(field.get("type", "any"))


def flags() -> str:
    """The flags of each program of the images, as `--help` prints them."""
    lines = ["# Flags", "", "The chart values `args` and `extraArgs` pass flags to the pods.", ""]
    for module in MANAGERS:
        command = [sys.executable, "-m", module, "--help"]
        text = subprocess.check_output(command, text=True, env={**os.environ, "COLUMNS": "100"})
        lines += [f"## {module}", "", "```text", text.rstrip(), "```", ""]
    return "\n".join(lines)


def labels() -> str:
    """The labels and annotations of Cluster API that providers read or write."""
    origin = "https://cluster-api.sigs.k8s.io/reference/api/labels-and-annotations"
    lines = [
        "# Labels and annotations",
        "",
        f"Providers read or write these of [all]({origin}).",
        "",
    ]
    lines += ["| key | type | description |", "|---|---|---|"]
    body = ast.parse(Path(capelin.contract.labels.__file__).read_text()).body
    for constant, following in pairwise(body):
        match constant, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(key))),
                ast.Expr(value=ast.Constant(value=str(text))),
            ) if name.endswith(_KEYS):
                kind = name.rpartition("_")[2].lower()
                where = "Nodes" if name.startswith("NODE_") else "objects"
                lines.append(f"| `{key}` | {kind} of {where} | {_cell(text)} |")
            case _:
                pass
    return "\n".join([*lines, ""])


def python() -> str:
    """The exports of each package of the library."""
    lines = ["# Python", ""]
    for room in ROOMS:
        module = importlib.import_module(room)
        lines += [f"## {room}", "", *_text(module.__doc__), ""]
        lines += ["| name | description |", "|---|---|"]
        lines += [_export(name, getattr(module, name)) for name in sorted(module.__all__)]
        lines.append("")
    return "\n".join(lines)


def _export(name: str, value: object) -> str:
    if inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value):
        says = (inspect.getdoc(value) or "").split("\n\n")[0]
    else:
        says = f"`{value}`" if isinstance(value, str) else "A type." if callable(value) else ""
    return f"| `{name}` | {_cell(says)} |"


def metrics() -> str:
    """The metrics of a manager."""
    collected = cast("_Collector", Metrics().registry).collect()
    guide = "[Monitor](../how-to/monitor.md) explains them."
    lines = ["# Metrics", "", f"Every manager serves these metrics at `/metrics`. {guide}", ""]
    lines += ["| metric | type | description |", "|---|---|---|"]
    for metric in sorted(collected, key=lambda metric: metric.name):
        # A family of a counter has the name of its samples without the suffix.
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        lines.append(f"| `{name}` | {metric.type} | {_cell(metric.documentation)} |")
    return "\n".join([*lines, ""])


def errors() -> str:
    """Errors for people, with the exit code of the command."""
    lines = ["# Errors", "", EXIT_CODES, "", "| error | exit code | description |", "|---|---|---|"]
    for error in sorted(
        _subclasses(UserError), key=lambda error: (error.exit_code, error.__name__)
    ):
        says = _cell((inspect.getdoc(error) or "").split("\n\n")[0])
        lines.append(f"| `{error.__module__}.{error.__name__}` | {error.exit_code} | {says} |")
    return "\n".join([*lines, ""])


def rules() -> str:
    """The rules that `capelin conformance` checks, for each contract."""
    guide = "[`capelin conformance`](../how-to/conformance.md) checks these rules of providers."
    lines = ["# Rules for providers", "", guide, ""]
    checked = (("manifests", (*KIND_RULES, *COMPONENT_RULES)), ("behaviour", BEHAVIOUR_RULES))
    for contract in CONTRACTS:
        lines += [f"## {contract}", "", "| rule | checks | requirement |", "|---|---|---|"]
        for subject, candidates in checked:
            for rule in rules_of(candidates, contract):
                level = f"{subject}, advice" if rule.advice else subject
                name = f"[{rule.name}]({rule.source(contract)})"
                lines.append(f"| {name} | {level} | {_cell(rule.requirement)} |")
        lines.append("")
    return "\n".join(lines)


def _subclasses(error: type[UserError]) -> Iterator[type[UserError]]:
    for subclass in error.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _text(text: str | None) -> list[str]:
    return inspect.cleandoc(text or "").splitlines()


def _cell(text: str) -> str:
    """Text in a form that fits into a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
