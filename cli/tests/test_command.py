"""The command line: rejected input, messages and exit codes."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from capelin.client import Config, Server, Unreachable
from capelin.errors import BusyError, NotReadyError, WaitTimeoutError
from capelin_cli.verbs.runner import explained
from capelin_embedded.binaries import NotObtainableError
from capelin_embedded.management import Environment, ExistingServer, Settings

from .command import capelin

HELP_SECONDS = 0.5


def process(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    # Coverage would slow the command down.
    inherited = {key: each for key, each in os.environ.items() if not key.startswith("COVERAGE_")}
    return subprocess.run(
        [sys.executable, "-m", "capelin_cli", *arguments],
        env={**inherited, "XDG_STATE_HOME": str(home), "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_help_names_every_verb_and_every_exit_code(tmp_path: Path) -> None:
    text = capelin("--help", home=tmp_path).stdout
    verbs = "up status kubeconfig logs stop start restart down create delete upgrade mirror kubectl"
    of_clusters = "recover wait backup backups restore rotate move"
    for verb in (*verbs.split(), *of_clusters.split()):
        assert f"\n  {verb} " in text
    for code in ("0 done", "2 invalid command line", "4 no such", "5 another", "130 interrupted"):
        assert code in " ".join(text.split())


def test_help_appears_quickly(tmp_path: Path) -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert process("--help", home=tmp_path).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Best CPU time of three, so that a busy machine does not matter.
    assert min(seconds() for _ in range(3)) < HELP_SECONDS


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["up", "-e", "No!"], 2, "cannot be the name of an environment"),
        (["up", "--kubernetes-version", "v1.1.1"], 2, "Known: v1."),
        (["up", "--with", "kubeadm,,dev"], 2, "empty name"),
        (["up", "--with", ""], 2, "empty name"),
        (["up", "-f", "/nope"], 2, "does not exist"),
        (["kubectl", "get", "nodes"], 4, "Environment default does not exist"),
        (["stop"], 4, "Environment default does not exist"),
        (["restart", "etcd"], 4, "Environment default does not exist"),
        (["create", "cluster", "a", "--set", "x"], 2, "Write it as NAME=VALUE"),
        (["delete", "cluster", "demo"], 2, "Add --yes"),
        (["recover", "cluster", "demo"], 2, "Add --yes"),
        (["recover", "cluster", "demo", "--yes"], 4, "Environment default does not exist"),
        (["recover", "cluster", "demo", "--data", "/nope"], 2, "does not exist"),
        (["backup", "demo"], 2, "Type capelin backup cluster demo."),
        (["backup", "cluster", "demo"], 4, "Environment default does not exist"),
        (["backups"], 4, "Environment default does not exist"),
        (["backups", "verify", "demo"], 4, "Environment default does not exist"),
        (["backups", "verify", "demo", "--key-file", "/nope"], 2, "does not exist"),
        (["backups", "prune", "demo"], 4, "Environment default does not exist"),
        (["restore", "cluster", "demo", "--yes"], 4, "Environment default does not exist"),
        (["up", "--backup-folder", "/nope"], 2, "does not exist"),
        (["up", "--with", "aws"], 2, "kubeadm-bootstrap, kubeadm, dev"),
        (["up", "--workers", "-1"], 2, "--workers"),
        (["up", "--target", "pods"], 2, "'process', 'kind', 'existing'"),
        (["up", "--context", "lab"], 2, "Add --target existing"),
        (["up", "--node-image", "node:v1"], 2, "--node-image is for --target kind"),
        (["up", "--target", "kind", "--context", "lab"], 2, "are for --target existing"),
        (["up", "--target", "existing", "--kubeconfig", "/nope"], 2, "/nope cannot be read"),
        (["scale", "demo"], 2, "give --workers, --control-plane-replicas, or both"),
        (["restore", "cluster", "a", "--bucket=https://b/c"], 2, "add --key-file"),
        (["scale", "demo", "5"], 2, "Type capelin scale demo --workers 5."),
        (["scale", "demo", "up"], 2, "Type capelin scale demo --workers N."),
        (["scale", "cluster", "demo", "--workers", "5"], 2, "capelin scale demo --workers 5."),
        (["wait", "demo"], 2, "Type capelin wait cluster demo."),
        (["wait", "cluster", "demo"], 4, "Environment default does not exist"),
        (["upgrade", "demo"], 2, "Type capelin upgrade cluster demo."),
        (["upgrade", "demo", "1.34", "-e", "a b"], 2, "upgrade cluster demo 1.34 -e 'a b'."),
        (["delete", "demo", "--yes"], 2, "Type capelin delete cluster demo --yes."),
        (["create", "cluster1"], 2, "Type capelin create cluster cluster1."),
        (["recover", "demo"], 2, "Type capelin recover cluster demo."),
        (["kubeconfig"], 4, "Start it with capelin up -e default"),
        (["kubeconfig", "--user", "alice"], 2, "--user needs the name of a workload cluster"),
        (["kubeconfig", "demo", "--group", "dev"], 2, "--group needs --user"),
        (["kubeconfig", "demo", "--user", "alice", "--merge"], 2, "--merge excludes --raw and"),
        (["kubeconfig", "demo", "--user", "a", "--for", "1"], 2, "'1' is not a duration"),
        (["kubeconfig", "demo", "--user", "a", "--for", "5m"], 2, "Type --for 10m, or"),
        (["kubeconfig", "demo", "--user", "a", "--group", "system:masters"], 2, "cluster-admin"),
        (["kubeconfig", "demo", "--user", ""], 2, "Choose another name."),
        (["status", "-e", "none"], 4, "Environment none does not exist.\n  Environments: none."),
        (["logs", "-e", "none"], 4, "Environment none does not exist"),
        (["down", "-e", "none"], 4, "Environment none does not exist"),
        (["upgrade", "cluster", "demo", "v1.34.0"], 4, "Environment default does not exist"),
        (["ui"], 4, "Environment default does not exist"),
        (["ui", "-e", "none"], 4, "Environment none does not exist"),
        (["ui", "--kubeconfig", "/nope"], 2, "does not exist"),
        (["ui", "--port", "65536"], 2, "--port"),
        (["cache", "prefetch", "kube-proxyy"], 2, "is not a binary"),
    ],
)
def test_invalid_options(arguments: list[str], code: int, text: str, tmp_path: Path) -> None:
    ended = capelin(*arguments, home=tmp_path)
    assert text in ended.stderr
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_existing_api_server_is_rejected(tmp_path: Path) -> None:
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


def test_down_warns_about_objects_that_stay_in_an_existing_api_server(tmp_path: Path) -> None:
    environment = Environment(tmp_path / "capelin" / "default")
    environment.make_folders()
    environment.kubeconfig.write_bytes(Config(Server("https://127.64.0.9:1")).flattened())
    known = ExistingServer(cluster="uid", version="v1.34.4", address="127.0.0.1", mark="default.1")
    environment.write_settings(Settings(kubernetes_version="v1.34.4", existing=known))
    hesitant = capelin("down", home=tmp_path)
    assert hesitant.returncode == 2
    assert "cannot be used now: API server at https://127.64.0.9:1 does not" in hesitant.stderr
    assert capelin("down", "--yes", home=tmp_path).stdout.splitlines()[-1] == (
        "Its objects in an existing API server stay there, "
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
        ("capelin_cli.clusters.up.start", ["start", "-e", "lab"]),
        ("capelin_cli.environments.lifetime.stop", ["stop", "-e", "lab"]),
        ("capelin_cli.environments.lifetime.take_down", ["down", "-e", "lab"]),
        ("capelin_cli.environments.lifetime.take_down", ["down", "--all"]),
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


def test_a_process_exits_with_code_and_reason(tmp_path: Path) -> None:
    ended = process("kubeconfig", home=tmp_path)
    assert ended.returncode == 4
    assert ended.stderr == capelin("kubeconfig", home=tmp_path).stderr


def test_verbose_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in capelin("-v", "kubeconfig", home=tmp_path).stderr


def test_status_without_environments_names_the_command_to_start_one(tmp_path: Path) -> None:
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
def test_each_kind_of_error_has_its_exit_code(error: Exception, code: int) -> None:
    message, found = explained(error)
    assert found == code
    assert message.startswith("Error: ")


def test_an_error_shows_message_reason_and_hint() -> None:
    message, _ = explained(NotReadyError("It is not up.", reason="It crashed.", hint="Look at it."))
    assert message.splitlines() == ["Error: It is not up.", "  It crashed.", "  Look at it."]


def test_a_read_only_folder_is_reported_without_a_defect() -> None:
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
        [sys.executable, "-m", "capelin_cli", "doctor"],
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
        ("up", "capelin_cli.clusters.up.bring_up", "capelin up -e lab, or remove it with"),
        ("stop", "capelin_cli.environments.lifetime.stop", "Continue with capelin stop -e lab."),
        (
            "start",
            "capelin_cli.clusters.up.start",
            "Continue with capelin start -e lab.",
        ),
        (
            "down",
            "capelin_cli.environments.lifetime.take_down",
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
