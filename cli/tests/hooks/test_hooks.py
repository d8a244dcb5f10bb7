"""`capelin hooks` against a running extension."""

import base64
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from capelin.api.capi import ExtensionConfig
from capelin.client import Client, Forbidden, NotServed
from capelin.errors import InvalidInputError, MissingError
from capelin.pki import issue, new_ca
from capelin.runtime.fixtures import ClusterFixture, UsedPatch, sample_cluster
from capelin.runtime.v1alpha1 import ExtensionHandler, GeneratePatches
from capelin_cli.hooks import targets
from capelin_cli.hooks.targets import RequestOptions, registered
from capelin_cli.hooks.verbs import Listed, by_extension, percentile, preview
from capelin_conformance.extensions import RULES
from capelin_embedded.management import CORE, environment_named
from rich.console import Console

from cli.tests import command
from cli.tests.command import Said

PROGRAM = """
from capelin.api import Model
from capelin.runtime import Call, Extension, Failure, Response, proceed, retry_after
from capelin.runtime.topology import Mutations, Template
from capelin.runtime.v1alpha1 import (
    BeforeClusterCreate, BeforeClusterDelete, BeforeClusterUpgrade, GeneratePatches
)

ext = Extension("shoal")

class NoVariables(Model):
    pass

mutations = Mutations(NoVariables)
ext.handler(GeneratePatches, name="motto-v1")(mutations.patches)

@mutations.on("KubeadmConfigTemplate")
def motto(template: Template[NoVariables]) -> None:
    template.sequence("files").append({"path": "/etc/motd"})

@ext.handler(BeforeClusterCreate)
def fine(call: Call[BeforeClusterCreate, None]) -> Response:
    return proceed(call.request.cluster.name)

@ext.handler(BeforeClusterUpgrade)
def closed(call: Call[BeforeClusterUpgrade, None]) -> Response:
    return retry_after(30, "closed until " + call.request.to_kubernetes_version)

@ext.handler(BeforeClusterDelete)
def never(_: Call[BeforeClusterDelete, None]) -> Response:
    raise Failure("never")

from capelin.runtime.server import serve
serve(ext)
"""


ZOO = """
from capelin.runtime import Catalog, Hook, Request, RetryResponse

ZOO = Catalog()

class BeforeOpeningRequest(Request):
    gate: str

class BeforeOpeningResponse(RetryResponse):
    visitors: int = 0

@ZOO.hook("zoo.example.com/v1", tag="Zoo", summary="Before a gate opens")
class BeforeOpening(Hook[BeforeOpeningRequest, BeforeOpeningResponse]):
    \"""Probe every morning.\"""
"""
KEEPER = """
from capelin.runtime import Call, Extension
from zoo import BeforeOpening, BeforeOpeningResponse

ext = Extension("keeper")

@ext.handler(BeforeOpening)
def fed(call: Call[BeforeOpening, None]) -> BeforeOpeningResponse:
    hungry = {"north": 60}.get(call.request.gate, 0)
    return BeforeOpeningResponse(status="Success", retry_after_seconds=hungry, visitors=3)

from capelin.runtime.server import serve
serve(ext)
"""

Capelin = Callable[..., Said]


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, Path]]:
    """The URL of a running extension, and a folder with its ExtensionConfig."""
    folder = tmp_path_factory.mktemp("extension")
    with running(PROGRAM, folder) as url:
        yield url, folder


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """The folder of an extension for hooks of its author's own."""
    folder = tmp_path_factory.mktemp("keeper")
    (folder / "zoo.py").write_text(ZOO)
    (folder / "request.json").write_text('{"gate": "north"}')
    with running(KEEPER, folder):
        yield folder


@contextmanager
def running(program: str, folder: Path, *flags: str) -> Generator[str]:
    """The URL of a program, whose files and ExtensionConfig come into the folder."""
    now = datetime.now(UTC)
    ca = new_ca("hooks", now=now)
    pair = issue(
        ca, common_name="hooks", usages=["server", "client"], addresses=["127.0.0.1"], now=now
    )
    (folder / "tls.crt").write_bytes(pair.certificate_pem)
    (folder / "tls.key").write_bytes(pair.private_key_pem)
    (folder / "ca.crt").write_bytes(ca.certificate_pem)
    (folder / "program.py").write_text(program)
    command = [sys.executable, str(folder / "program.py"), "--host=127.0.0.1", "--port=0"]
    command += ["--probes-port=0", f"--cert-dir={folder}", "--drain-seconds=0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        for line in process.stderr:
            if found := re.search(r"https port (\d+)", line):
                break
        else:
            pytest.fail("the extension did not start")
        url = f"https://127.0.0.1:{found[1]}"
        bundle = base64.b64encode(ca.certificate_pem).decode()
        config = {
            "apiVersion": "runtime.cluster.x-k8s.io/v1beta2",
            "kind": "ExtensionConfig",
            "metadata": {"name": "shoal"},
            "spec": {
                "clientConfig": {"url": url, "caBundle": bundle},
                "settings": {"a": "b"},
            },
        }
        (folder / "config.json").write_text(json.dumps(config))
        try:
            yield url
        finally:
            process.terminate()
            process.stderr.read()


@pytest.fixture
def capelin(
    extension: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Capelin:
    """`capelin hooks` in the folder of the extension."""
    monkeypatch.chdir(extension[1])
    return partial(command.capelin, "hooks", home=tmp_path)


def test_discover_lists_the_handlers(capelin: Capelin, extension: tuple[str, Path]) -> None:
    result = capelin("discover", extension[0], "--ca", "ca.crt")
    assert result.returncode == 0
    assert "motto-v1" in result.stdout
    assert "BeforeClusterUpgrade" in result.stdout
    found = json.loads(capelin("discover", "config.json", "-o", "json").stdout)
    assert [one["name"] for one in found] == ["motto-v1", "fine", "closed", "never"]


def test_the_exit_code_of_call_reports_the_answer(capelin: Capelin) -> None:
    fine = capelin("call", "config.json", "fine.shoal")
    assert (fine.returncode, json.loads(fine.stdout)["message"]) == (0, "example")
    held = capelin("call", "config.json", "closed", "--to", "v1.35.0")
    assert (held.returncode, json.loads(held.stdout)["message"]) == (7, "closed until v1.35.0")
    no = capelin("call", "config.json", "never")
    assert (no.returncode, no.stdout) == (1, "")
    assert "never failed: never" in no.stderr


def test_a_printed_request_can_be_edited_and_sent(capelin: Capelin, tmp_path: Path) -> None:
    shown = json.loads(capelin("call", "config.json", "fine", "--show-request").stdout)
    assert shown["settings"] == {"a": "b"}
    shown["cluster"]["metadata"]["name"] = "blue"
    file = tmp_path / "request.json"
    file.write_text(json.dumps(shown))
    result = capelin("call", "config.json", "fine", "-f", str(file))
    assert json.loads(result.stdout)["message"] == "blue"


def test_patches_are_shown_as_a_diff(capelin: Capelin, tmp_path: Path) -> None:
    result = capelin("call", "config.json", "motto-v1", "--diff")
    assert result.returncode == 0
    assert "--- KubeadmConfigTemplate of MachineDeployment example-md-0" in result.stdout
    assert "+      - path: /etc/motd" in result.stdout
    shown = json.loads(capelin("call", "config.json", "motto-v1", "--show-request").stdout)
    file = tmp_path / "request.json"
    file.write_text(json.dumps({key.upper(): value for key, value in shown.items()}))
    assert capelin("call", "config.json", "motto-v1", "--diff", "-f", str(file)) == result
    shown["items"] = [{"uid": "1"}]
    file.write_text(json.dumps(shown))
    refused = capelin("call", "config.json", "motto-v1", "--diff", "-f", str(file))
    assert refused.returncode == 2
    assert "is not a request of GeneratePatches" in refused.stderr
    refused = capelin("call", "config.json", "fine", "--diff")
    assert (refused.returncode, "only GeneratePatches" in refused.stderr) == (2, True)


def test_bench_counts_calls(capelin: Capelin) -> None:
    result = capelin("bench", "config.json", "fine", "--seconds", "0.2", "-o", "json")
    figures = json.loads(result.stdout)
    assert figures["calls"] > 0
    assert figures["p50Milliseconds"] <= figures["p99Milliseconds"]


def test_conformance_has_an_exit_code(capelin: Capelin, extension: tuple[str, Path]) -> None:
    pure = capelin("conformance", "config.json", "--pure-only")
    assert pure.returncode == 0, pure.stdout
    assert "FAILED" not in pure.stdout
    all_handlers = capelin("conformance", "config.json")
    assert all_handlers.returncode == 1, all_handlers.stdout
    assert "never (BeforeClusterDelete): it never succeeded" in all_handlers.stdout
    lost = capelin("conformance", extension[0], "-o", "json")
    found = json.loads(lost.stdout)
    (failed,) = [rule for rule in found["results"] if rule["outcome"] == "failed"]
    assert (lost.returncode, found["passed"], failed["name"]) == (1, False, "tls")
    assert "caBundle" in failed["hint"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("discover", "http://example.com"), 2, "must start with https://"),
        (("discover", "none.yaml"), 2, "It cannot be read"),
        (("discover", "program.py"), 2, "It is neither YAML nor JSON"),
        (("discover", "shoal"), 4, "Environment default does not exist"),
        (("ls",), 4, "Environment default does not exist"),
        (("call", "config.json", "other"), 4, "Its handlers: closed, fine, motto-v1"),
        (("call", "config.json", "fine", "-f", "ca.crt"), 2, "ca.crt is not a request"),
        (("call", "config.json", "fine", "--cluster", "x/y"), 4, "Environment default"),
        (("call", "config.json", "fine", "-f", "a", "--cluster", "b"), 2, "not both"),
        (("call", "config.json", "motto-v1", "--patch", "motto"), 2, "Add --cluster"),
        (("discover", "config.json", "--client-cert", "tls.crt"), 2, "Give both or neither"),
        (("discover", "https://127.0.0.1:1"), 1, "connection refused"),
    ],
)
def test_an_invalid_command_is_reported_with_a_hint(
    capelin: Capelin, arguments: tuple[str, ...], code: int, words: str
) -> None:
    result = capelin(*arguments)
    assert result.returncode == code, result.stderr
    assert words in " ".join(result.stderr.split())
    assert "defect" not in result.stderr


def test_hooks_of_others(keeper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(keeper)
    monkeypatch.delitem(sys.modules, "zoo", raising=False)
    capelin = partial(command.capelin, "hooks", home=tmp_path)
    unknown = capelin("discover", "config.json")
    assert unknown.returncode == 1
    assert "known with --catalog MODULE:NAME" in " ".join(unknown.stderr.split())
    zoo = ("--catalog", "zoo:ZOO")
    assert "zoo.example.com/v1" in capelin("discover", "config.json", *zoo).stdout
    held = capelin("call", "config.json", "fed", "-f", "request.json", *zoo)
    answer = json.loads(held.stdout)
    assert (held.returncode, answer["retryAfterSeconds"], answer["visitors"]) == (7, 60, 3)
    made_up = capelin("call", "config.json", "fed", *zoo)
    assert (made_up.returncode, "Provide one in a file" in made_up.stderr) == (2, True)
    figures = capelin(
        "bench", "config.json", "fed", "-f", "request.json", "--seconds=0.1", "-o", "json", *zoo
    )
    assert json.loads(figures.stdout)["calls"] > 0
    checked = capelin("conformance", "config.json", *zoo)
    assert checked.returncode == 0, checked.stdout
    assert "not called: fed: no sample request for BeforeOpening" in checked.stdout
    nowhere = capelin("discover", "config.json", "--catalog", "zoo:SEA")
    assert (nowhere.returncode, "no catalog SEA" in nowhere.stderr) == (2, True)


class ApiServer:
    """An API server with these ExtensionConfigs, or with an error."""

    def __init__(self, *configs: ExtensionConfig, error: Exception | None = None) -> None:
        self.configs, self.error = configs, error

    async def list(self, _: type[ExtensionConfig]) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(items=[*self.configs])


async def test_extension_configs_come_from_the_api_server() -> None:
    config = ExtensionConfig.of("keeper")
    assert await registered(cast("Client", ApiServer(config))) == [config]


async def test_without_core_the_list_of_extensions_is_empty() -> None:
    missing = NotServed(0, "NotFound", "no ExtensionConfig for you")
    assert await registered(cast("Client", ApiServer(error=missing))) == []


async def test_a_forbidden_list_of_extensions_is_an_error() -> None:
    error = Forbidden(0, "Forbidden", "no ExtensionConfig for you")
    with pytest.raises(Forbidden, match="no ExtensionConfig for you"):
        await registered(cast("Client", ApiServer(error=error)))


def test_call_with_the_certificate_of_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    with running(PROGRAM, folder, f"--client-ca={folder / 'ca.crt'}"):
        config = ExtensionConfig.read(json.loads((folder / "config.json").read_text()))
        api_server = nullcontext(ApiServer(config))

        def client_of(_: object) -> object:
            return api_server

        monkeypatch.setattr(targets, "client_of", client_of)
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        environment_named("default").credentials.mkdir(parents=True)
        refused = command.capelin("hooks", "discover", "shoal", home=tmp_path)
        assert refused.returncode == 1
        own = environment_named("default").credentials / CORE.label
        own.mkdir()
        for name in ("tls.crt", "tls.key"):
            (own / name).write_bytes((folder / name).read_bytes())
        found = command.capelin("hooks", "discover", "shoal", home=tmp_path)
        assert "motto-v1" in found.stdout, found.stderr


def test_conformance_of_a_dead_server_reports_untried_rules(capelin: Capelin) -> None:
    dead = capelin("conformance", "https://127.0.0.1:1")
    assert dead.returncode == 1
    words = [line.split()[0] for line in dead.stdout.splitlines() if line[:1].strip()]
    assert words.count("FAILED") == 1
    assert words.count("ok") == 0
    assert f"{len(RULES)} rules: 1 FAILED, {len(RULES) - 1} untried" in dead.stdout


def test_help_of_every_verb_names_its_options(capelin: Capelin) -> None:
    text = capelin("--help").stdout
    for verb in ("ls", "discover", "call", "bench", "conformance"):
        assert f"\n  {verb} " in text
        assert capelin(verb, "--help").returncode == 0


def test_a_preview_without_patches_shows_no_changes() -> None:
    item: dict[str, Any] = {"uid": "1", "object": {"kind": "A"}, "holderReference": {}}
    assert list(preview({"items": [item]}, {})) == ["No template changes."]


SCENE = replace(
    sample_cluster(variables={"motto": "swim", "depth": 3}),
    patches=[
        UsedPatch("inline", variables=frozenset({"depth"})),
        UsedPatch(
            "motto",
            {"GeneratePatches": "motto-v1.shoal"},
            frozenset({"motto"}),
            {"a": "patch", "c": "d"},
        ),
        UsedPatch("one", {"GeneratePatches": "twice.shoal"}),
        UsedPatch("two", {"GeneratePatches": "twice.shoal"}, frozenset({"depth"})),
    ],
)


async def request_about_the_scene(
    monkeypatch: pytest.MonkeyPatch, handler: str, patch: str | None = None
) -> tuple[set[str], dict[str, str]]:
    """Names of the variables in the request to the handler, and its settings."""

    async def fixture(*_: object) -> ClusterFixture:
        return SCENE

    monkeypatch.setattr(RequestOptions, "cluster_fixture", fixture)
    options = RequestOptions(cluster="example", patch=patch)
    settings = {"a": "config", "b": "config"}
    request = await options.request(GeneratePatches, handler, "default", settings)
    return {variable["name"] for variable in request["variables"]}, request["settings"]


@pytest.mark.parametrize("handler", ["motto-v1.shoal", "motto-v1"])
async def test_handler_gets_its_variables(monkeypatch: pytest.MonkeyPatch, handler: str) -> None:
    sent = await request_about_the_scene(monkeypatch, handler)
    assert sent == ({"builtin", "motto"}, {"a": "patch", "b": "config", "c": "d"})


async def test_patch_name_is_needed_for_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidInputError, match=r"one, two.*--patch"):
        await request_about_the_scene(monkeypatch, "twice.shoal")
    names, _ = await request_about_the_scene(monkeypatch, "twice.shoal", "two")
    assert names == {"builtin", "depth"}
    with pytest.raises(MissingError, match="Those that do: one, two"):
        await request_about_the_scene(monkeypatch, "twice.shoal", "three")


async def test_a_handler_that_no_patch_names_gets_all_variables_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names, settings = await request_about_the_scene(monkeypatch, "new.shoal")
    assert (names, settings["a"]) == ({"builtin", "motto", "depth"}, "config")
    assert "No patch of the ClusterClass names new.shoal" in capsys.readouterr().err


ITEM: dict[str, Any] = {
    "uid": "1",
    "object": {"kind": "Reef", "spec": {"open": 1}},
    "holderReference": {"kind": "Cluster", "name": "blue", "fieldPath": "spec"},
}


def patched_by(patch: bytes, kind: str = "JSONPatch", uid: str = "1") -> list[str]:
    response = {"uid": uid, "patchType": kind, "patch": base64.b64encode(patch).decode()}
    return list(preview({"items": [ITEM]}, {"items": [response]}))


def test_a_preview_distinguishes_values_that_python_treats_as_equal() -> None:
    lines = patched_by(b'[{"op": "replace", "path": "/spec/open", "value": true}]')
    assert lines[-2:] == ["-  open: 1", "+  open: true"]
    assert patched_by(b'{"spec": {"open": 1}}', "JSONMergePatch") == ["No template changes."]


@pytest.mark.parametrize("kind", ["JSONPatch", "JSONMergePatch"])
@pytest.mark.parametrize("patch", [b"", b"{", b"<html>", b"\xff"])
def test_a_patch_must_be_json(patch: bytes, kind: str) -> None:
    with pytest.raises(InvalidInputError, match="a patch is not JSON"):
        patched_by(patch, kind)


@pytest.mark.parametrize("patch", [b"{}", b"1", b"null", b'"x"'])
def test_a_json_patch_has_steps(patch: bytes) -> None:
    with pytest.raises(InvalidInputError, match="is not a list of steps"):
        patched_by(patch)


def test_a_patch_of_an_unknown_template_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match="has the uid 'other'"):
        patched_by(b"[]", uid="other")


@pytest.mark.parametrize(
    ("patch", "uid", "title"),
    [
        (b"{", "1", "A patch cannot be read."),
        (b"{}", "1", "A patch cannot be read."),
        (b"[]", "other", "A patch is for no template of the request."),
        (b'[{"op": "remove", "path": "/none"}]', "1", "A patch does not fit its template."),
    ],
)
def test_the_error_message_names_the_problem_of_a_patch(patch: bytes, uid: str, title: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        patched_by(patch, uid=uid)
    assert refusal.value.message == title


def test_a_percentile_is_the_longest_time_of_that_share_of_calls() -> None:
    took = [number / 1000 for number in range(1, 101)]
    assert [percentile(took, part) for part in (50, 99)] == [51.0, 100.0]
    assert percentile([0.001], 99) == 1.0


def listed(extension: str, handlers: Sequence[str], discovered: str = "True") -> list[Listed]:
    condition = {
        "type": "Discovered",
        "status": discovered,
        "reason": "Discovered",
        "message": "it does not answer",
        "lastTransitionTime": "2030-01-01T00:00:00Z",
    }
    config = ExtensionConfig.read(
        {
            "metadata": {"name": extension},
            "spec": {"clientConfig": {"url": "https://localhost"}},
            "status": {"conditions": [condition]},
        }
    )
    rows: list[Listed] = []
    for name in handlers:
        hook = "".join(part.capitalize() for part in name.split("-")[:4])
        api_version = "hooks.runtime.cluster.x-k8s.io/v1alpha1"
        rows.append(
            Listed(
                config,
                ExtensionHandler.read(
                    {"name": name, "requestHook": {"apiVersion": api_version, "hook": hook}}
                ),
            )
        )
    return rows or [Listed(config)]


def test_a_narrow_terminal_shows_complete_names_of_handlers_and_hooks() -> None:
    names = [
        "before-control-plane-upgrade",
        "before-control-plane-upgrade-notice",
        "after-control-plane-initialized-notice",
    ]
    rows = [*listed("lifecycle", names), *listed("broken", [], "False")]
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as shown:
        console.print(by_extension(rows))
    lines = [line.split() for line in shown.get().splitlines()]
    assert lines[:2] == [["lifecycle", "discovered"], ["HANDLER", "HOOK", "FAILURE"]]
    assert [line[0] for line in lines[2:5]] == names
    assert lines[4][1:] == ["AfterControlPlaneInitialized", "Fail"]
    assert " ".join(lines[5]) == "broken discovered: False: it does not answer"
