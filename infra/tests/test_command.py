"""The command line: what it refuses, what it says, and its exit codes."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from capelin.client import Config, Server, Unreachable
from capelin.embedded.binaries import NotObtainableError
from capelin.embedded.management import Environment, ExistingServer, Settings
from capelin.errors import BusyError, NotReadyError, WaitTimeoutError
from capelin_infra.cli.runner import explained

from .command import capelin

HELP_SECONDS = 0.5


def process(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    # Measuring what is covered takes longer than some of the command.
    inherited = {key: each for key, each in os.environ.items() if not key.startswith("COVERAGE_")}
    return subprocess.run(
        [sys.executable, "-m", "capelin_infra", *arguments],
        env={**inherited, "XDG_STATE_HOME": str(home), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_help_names_every_verb_and_every_exit_code(tmp_path: Path) -> None:
    text = capelin("--help", home=tmp_path).stdout
    verbs = "up status kubeconfig logs stop start restart down create delete upgrade mirror kubectl"
    for verb in (*verbs.split(), "recover", "wait"):
        assert f"\n  {verb} " in text
    for code in ("0 done", "2 invalid command line", "4 no such", "5 another", "130 interrupted"):
        assert code in " ".join(text.split())


def test_help_comes_at_once(tmp_path: Path) -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert process("--help", home=tmp_path).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Time on a processor, the best of three: how busy others keep the machine says nothing.
    assert min(seconds() for _ in range(3)) < HELP_SECONDS


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["up", "-e", "No!"], 2, "cannot be the name of an environment"),
        (["up", "--kubernetes-version", "v1.1.1"], 2, "Known: v1."),
        (["up", "--with", "kubeadm,,dev"], 2, "empty name"),
        (["up", "--with", ""], 2, "empty name"),
        (["up", "-f", "/nope"], 2, "does not exist"),
        (["kubectl", "get", "nodes"], 4, "There is no environment default"),
        (["stop"], 4, "There is no environment default"),
        (["restart", "etcd"], 4, "There is no environment default"),
        (["create", "cluster", "a", "--set", "x"], 2, "Write it as NAME=VALUE"),
        (["delete", "cluster", "demo"], 2, "Say --yes"),
        (["recover", "cluster", "demo"], 2, "Say --yes"),
        (["recover", "cluster", "demo", "--yes"], 4, "There is no environment default"),
        (["recover", "cluster", "demo", "--data", "/nope"], 2, "does not exist"),
        (["up", "--with", "aws"], 2, "kubeadm-bootstrap, kubeadm, dev"),
        (["up", "--workers", "-1"], 2, "--workers"),
        (["up", "--target", "pods"], 2, "'process', 'kind', 'existing'"),
        (["up", "--context", "lab"], 2, "Add --target existing"),
        (["up", "--node-image", "node:v1"], 2, "--node-image is for --target kind"),
        (["up", "--target", "kind", "--context", "lab"], 2, "are for --target existing"),
        (["up", "--target", "existing", "--kubeconfig", "/nope"], 2, "/nope cannot be read"),
        (["scale", "demo"], 2, "give --workers, --control-plane-replicas, or both"),
        (["scale", "demo", "5"], 2, "Type capelin scale demo --workers 5."),
        (["scale", "demo", "up"], 2, "Type capelin scale demo --workers N."),
        (["scale", "cluster", "demo", "--workers", "5"], 2, "capelin scale demo --workers 5."),
        (["wait", "demo"], 2, "Type capelin wait cluster demo."),
        (["wait", "cluster", "demo"], 4, "There is no environment default"),
        (["upgrade", "demo"], 2, "Type capelin upgrade cluster demo."),
        (["upgrade", "demo", "1.34", "-e", "a b"], 2, "upgrade cluster demo 1.34 -e 'a b'."),
        (["delete", "demo", "--yes"], 2, "Type capelin delete cluster demo --yes."),
        (["create", "cluster1"], 2, "Type capelin create cluster cluster1."),
        (["recover", "demo"], 2, "Type capelin recover cluster demo."),
        (["kubeconfig"], 4, "Start it with capelin up -e default"),
        (["status", "-e", "none"], 4, "There is no environment none.\n  Environments: none."),
        (["logs", "-e", "none"], 4, "There is no environment none"),
        (["down", "-e", "none"], 4, "There is no environment none"),
        (["upgrade", "cluster", "demo", "v1.34.0"], 4, "There is no environment default"),
        (["cache", "prefetch", "kube-proxyy"], 2, "is not a binary"),
    ],
)
def test_invalid_options(arguments: list[str], code: int, said: str, tmp_path: Path) -> None:
    ended = capelin(*arguments, home=tmp_path)
    assert said in ended.stderr
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_existing_api_server_that_does_not_answer_is_refused(tmp_path: Path) -> None:
    kubeconfig, home = tmp_path / "kubeconfig", tmp_path / "home"
    home.mkdir()
    kubeconfig.write_bytes(Config(Server("https://127.64.0.9:1")).flattened())
    ended = capelin("up", "--target", "existing", "--kubeconfig", str(kubeconfig), home=home)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "Error: The API server at https://127.64.0.9:1 is not usable.",
        "  API server at https://127.64.0.9:1 does not answer (connection refused).",
        "  Check that it runs, and that kubectl get nodes works with this kubeconfig.",
    ]
    assert list(home.iterdir()) == []


def test_nobody_loses_sight_of_what_stays_in_an_existing_api_server(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "capelin" / "default")
    environment.make_folders()
    environment.kubeconfig.write_bytes(Config(Server("https://127.64.0.9:1")).flattened())
    known = ExistingServer(cluster="uid", version="v1.34.4", address="127.0.0.1", mark="default.1")
    environment.write_settings(Settings(kubernetes_version="v1.34.4", existing=known))
    hesitant = capelin("down", home=tmp_path)
    assert hesitant.returncode == 2
    assert "cannot be used now: API server at https://127.64.0.9:1 does not" in hesitant.stderr
    assert capelin("down", "--yes", home=tmp_path).stdout.splitlines()[-1] == (
        "Whatever was put into an existing API server stays there, "
        "labelled capelin.cluster.x-k8s.io/environment=default.1."
    )
    assert not environment.folder.exists()


def test_unreadable_settings_keep_the_api_server(
    tmp_path: Path,
) -> None:
    environment = Environment(tmp_path / "capelin" / "default")
    environment.make_folders()
    environment.settings_file.touch()
    hesitant = capelin("down", home=tmp_path)
    assert hesitant.returncode == 2
    assert "The settings of environment default are unreadable." in hesitant.stderr
    assert environment.folder.exists()
    ended = capelin("down", "--yes", home=tmp_path)
    assert ended.returncode == 0
    assert "labelled capelin.cluster.x-k8s.io/environment." in ended.stdout
    assert not environment.folder.exists()


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("capelin_infra.clusters.up.start", ["start", "-e", "lab"]),
        ("capelin_infra.environments.lifetime.stop", ["stop", "-e", "lab"]),
        ("capelin_infra.environments.lifetime.take_down", ["down", "-e", "lab"]),
        ("capelin_infra.environments.lifetime.take_down", ["down", "--all"]),
    ],
)
def test_an_interruption_names_the_command_that_continues(
    function: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(function, interrupted)
    ended = capelin(*arguments, home=tmp_path)
    assert ended.returncode == 130
    assert f"Interrupted. Continue with capelin {' '.join(arguments)}." in ended.stderr


def test_a_process_ends_with_the_code_and_the_reason(tmp_path: Path) -> None:
    ended = process("kubeconfig", home=tmp_path)
    assert ended.returncode == 4
    assert ended.stderr == capelin("kubeconfig", home=tmp_path).stderr


def test_the_trace_is_shown_to_those_who_ask(tmp_path: Path) -> None:
    assert "Traceback" in capelin("-v", "kubeconfig", home=tmp_path).stderr


def test_without_environments_status_says_how_to_start_one(tmp_path: Path) -> None:
    assert "capelin up" in capelin("status", home=tmp_path).stdout
    assert capelin("status", "-o", "json", home=tmp_path).stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BusyError("a", reason="b", hint="c"), 5),
        (WaitTimeoutError("a", reason="b", hint="c"), 6),
        (NotReadyError("a", reason="b", hint="c"), 1),
        (NotObtainableError("etcd", [("cache", "not there")], "advice"), 3),
        (Unreachable("no answer"), 1),
        (KeyError("x"), 1),
        (PermissionError(errno.EACCES, "Permission denied", "/home"), 3),
        (OSError(errno.EROFS, "Read-only file system", "/home"), 3),
        (OSError(errno.ENOSPC, "No space left on device"), 3),
    ],
)
def test_each_kind_of_trouble_has_its_exit_code(error: Exception, code: int) -> None:
    message, found = explained(error)
    assert found == code
    assert message.startswith("Error: ")


def test_a_problem_is_told_as_what_why_and_what_to_do() -> None:
    message, _ = explained(NotReadyError("It is not up.", reason="It crashed.", hint="Look at it."))
    assert message.splitlines() == ["Error: It is not up.", "  It crashed.", "  Look at it."]


def test_a_folder_that_cannot_be_written_is_no_defect_of_capelin() -> None:
    message, _ = explained(OSError(errno.EROFS, "Read-only file system", "/home/me"))
    assert message.splitlines() == [
        "Error: Read-only file system: /home/me.",
        "  Run capelin doctor to see what this machine lacks.",
    ]


def test_no_colours_without_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Environment(tmp_path / "capelin" / "lab").make_folders()
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[3" in capelin("status", home=tmp_path).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in capelin("status", home=tmp_path).stdout


def test_a_terminal_without_unicode_is_not_a_defect_of_capelin(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "capelin_infra", "doctor"],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONIOENCODING": "ascii:strict"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Linux" in ended.stdout
    assert "UnicodeEncodeError" not in ended.stderr


@pytest.mark.parametrize(
    ("verb", "work", "again"),
    [
        ("up", "capelin_infra.clusters.up.bring_up", "capelin up -e lab, or remove it with"),
        ("stop", "capelin_infra.environments.lifetime.stop", "Continue with capelin stop -e lab."),
        (
            "start",
            "capelin_infra.clusters.up.start",
            "Continue with capelin start -e lab.",
        ),
        (
            "down",
            "capelin_infra.environments.lifetime.take_down",
            "Continue with capelin down -e lab.",
        ),
    ],
)
def test_an_interrupted_verb_names_its_environment(
    verb: str, work: str, again: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(work, interrupted)
    ended = capelin(verb, "-e", "lab", home=tmp_path)
    assert ended.returncode == 130
    assert again in ended.stderr
