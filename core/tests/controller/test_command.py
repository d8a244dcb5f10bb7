from pathlib import Path
from typing import Any

import pytest
from capelin.controller import Options, Reconciler, main


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


def test_a_missing_kubeconfig_ends_with_its_name(start: Any, tmp_path: Path) -> None:
    start("text", 0)
    path = tmp_path / "nowhere"
    assert run(f"--kubeconfig={path}") == 1


def test_help_is_for_the_manager_that_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("--help")
    assert caught.value.code == 0
    assert "Runs the controllers of capelin-test." in capsys.readouterr().out
