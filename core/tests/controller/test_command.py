from pathlib import Path
from typing import Any

import pytest
from capelin.controller import Options, Reconciler, main

HALF_A_KEY = "-----BEGIN PRIVATE KEY-----\nhunter2"


def nothing(_: Options) -> list[Reconciler[Any]]:
    return []


def run(*arguments: str, **environ: str) -> int:
    return main("capelin-test", nothing, arguments=arguments, environ=environ)


def test_options_that_cannot_be_end_with_all_that_is_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--concurrency=x", CAPELIN_NAMESPACE="A") == 2
    namespace, concurrency = capsys.readouterr().err.splitlines()
    assert namespace.startswith('capelin-test: CAPELIN_NAMESPACE: "A" is not a name; use')
    assert concurrency == 'capelin-test: --concurrency: "x" is not a whole number'


def test_a_manager_that_cannot_be_built_ends_with_the_reason(
    start: Any, monkeypatch: pytest.MonkeyPatch, kubeconfig: Path
) -> None:
    stream = start("text", 0)
    monkeypatch.setattr("sys.stderr", stream)

    def fail(_: Options) -> list[Reconciler[Any]]:
        raise RuntimeError(HALF_A_KEY)

    arguments = [f"--kubeconfig={kubeconfig}"]
    assert main("capelin-test", fail, arguments=arguments, environ={}) == 1
    assert "The manager failed" in stream.getvalue()
    assert "RuntimeError: (hidden)" in stream.getvalue()


def test_a_missing_kubeconfig_ends_with_its_name(
    start: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stream = start("text", 0)
    monkeypatch.setattr("sys.stderr", stream)
    path = tmp_path / "nowhere"
    assert run(f"--kubeconfig={path}") == 1
    assert f"kubeconfig {path} cannot be read" in stream.getvalue()


def test_help_is_for_the_manager_that_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("--help")
    assert caught.value.code == 0
    assert "Runs the controllers of capelin-test." in capsys.readouterr().out
