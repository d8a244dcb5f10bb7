"""Code blocks of the documents are valid: commands, Python, YAML and manifests."""

import ast
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import typer
import yaml
from capelin_cli.verbs import app
from capelin_control_plane.api import CapelinControlPlane
from capelin_machine_pool.api import CapelinCluster, CapelinMachinePool
from capelin_release.values import ExtensionValues, ManagerValues
from typer._click.core import Command

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *(page for page in ROOT.glob("docs/**/*.md") if "decisions" not in page.parts),
    *ROOT.glob("*/README.md"),
    *ROOT.glob("[!.]*/*/README.md"),
]
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
KINDS = {
    kind.resource.kind: kind for kind in (CapelinCluster, CapelinControlPlane, CapelinMachinePool)
}
SHELL = ("bash", "console", "sh", "shell")
LANGUAGES = {*SHELL, "csv", "json", "mermaid", "python", "toml", "yaml"}
VALUES = {
    "capelin-control-plane": ManagerValues,
    "capelin-machine-pool": ManagerValues,
    "capelin-lifecycle": ExtensionValues,
}
"""The values of the charts in the chart `capelin`."""
_SHELL_ENDS = ("|", ">", "&&", ";", "#", ")")


def blocks(*languages: str) -> list[object]:
    """The code blocks of some languages, each with its page."""
    return [
        pytest.param(match[3], id=f"{page.relative_to(ROOT)}:{match.start()}")
        for page in PAGES
        for match in _BLOCK.finditer(page.read_text())
        if match[2] in languages
    ]


def commands() -> list[object]:
    """Every line of a shell block that begins with `capelin`."""
    found: dict[str, None] = {}
    for page in PAGES:
        for match in _BLOCK.finditer(page.read_text()):
            if match[2] in SHELL:
                for line in match[3].replace("\\\n", " ").splitlines():
                    for part in re.findall(r"(?:^|\$\(|&& )(?:uv run )?(capelin .*)", line.strip()):
                        found[part] = None
    return list(found)


def words_of(line: str) -> list[str]:
    """The words of a command before any shell operator."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word.startswith(_SHELL_ENDS):
            break
        words.append(word)
    return words


def unknown(words: list[str]) -> Iterator[str]:
    """Unknown verbs and options of a command line."""
    command: Command = typer.main.get_command(app)
    known = options_of(command)
    before = words[0]
    for word in words[1:]:
        is_value, before = takes_value(command, before), word
        if is_value:
            continue
        subcommands: dict[str, Command] = getattr(command, "commands", {})
        if subcommands and not word.startswith("-"):
            if word not in subcommands:
                yield word
                return
            command = subcommands[word]
            known |= options_of(command)
        elif word.startswith("-") and word.split("=")[0] not in known:
            if command.context_settings.get("ignore_unknown_options"):
                return
            yield word


def takes_value(command: Command, word: str) -> bool:
    """Whether the next word is the value of an option."""
    return any(
        word in option.opts and not getattr(option, "is_flag", True) for option in command.params
    )


def options_of(command: Command) -> set[str]:
    """The options of a command and the common ones."""
    own = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return own | {"-h", "--help", "--install-completion", "--show-completion"}


@pytest.mark.parametrize("line", commands())
def test_a_command_exists_with_its_options(line: str) -> None:
    assert list(unknown(words_of(line))) == []


@pytest.mark.parametrize("code", blocks("python"))
def test_python_can_be_parsed(code: str) -> None:
    ast.parse(code)


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_can_be_parsed(text: str) -> None:
    assert list(yaml.safe_load_all(text)) != []


@pytest.mark.parametrize("text", blocks("yaml"))
def test_manifests_of_capelin_kinds_are_valid(text: str) -> None:
    for manifest in cast("Iterator[dict[str, Any]]", yaml.safe_load_all(text)):
        if (kind := KINDS.get(manifest.get("kind", ""))) is not None:
            # Reading ignores unknown fields, validation does not.
            assert kind.model_validate({key: manifest[key] for key in ("metadata", "spec")})


@pytest.mark.parametrize("text", blocks("yaml"))
def test_values_of_charts_exist(text: str) -> None:
    for values in cast("Iterator[dict[str, Any]]", yaml.safe_load_all(text)):
        for chart, model in VALUES.items():
            if chart in values:
                assert model.model_validate({"image": {"repository": "a"}, **values[chart]})


@pytest.mark.parametrize("text", blocks(*SHELL))
def test_a_shell_accepts_the_commands(text: str) -> None:
    typed = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    script = "\n".join(typed) or text
    checked = subprocess.run(
        ["bash", "-n"], input=script, text=True, capture_output=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("text", blocks("json"))
def test_json_can_be_parsed(text: str) -> None:
    json.loads(text)


@pytest.mark.parametrize("text", blocks("toml"))
def test_toml_can_be_parsed(text: str) -> None:
    tomllib.loads(text)


def test_each_block_has_a_known_language() -> None:
    found = {
        (page.name, language)
        for page in PAGES
        for language in re.findall(r"^ *```(.*)\n(?:.*\n)*?^ *```$", page.read_text(), re.MULTILINE)
    }
    assert found
    assert {each for each in found if each[1] not in LANGUAGES} == set()
