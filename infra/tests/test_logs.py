"""Logs, and what is added to them."""

import io
from pathlib import Path

import pytest
from capelin.embedded.management import Environment
from capelin.errors import MissingError
from capelin_infra.logs import Tail, print_logs


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    environment = Environment(tmp_path / "capelin" / "demo")
    environment.make_folders()
    environment.processes.mkdir()
    (environment.processes / "etcd.log").write_text("one\ntwo\nthree\n")
    (environment.processes / "kube-apiserver.log").write_text("alpha\n")
    return environment


async def test_the_last_lines_of_one_process(environment: Environment) -> None:
    out = io.StringIO()
    await print_logs(environment.name, "etcd", lines=2, follow=False, out=out)
    assert out.getvalue() == "two\nthree\n"


async def test_the_last_lines_of_all_say_whose_they_are(environment: Environment) -> None:
    out = io.StringIO()
    await print_logs(environment.name, None, lines=1, follow=False, out=out)
    assert out.getvalue() == "etcd: three\nkube-apiserver: alpha\n"


async def test_an_unknown_process_is_refused_with_the_known_ones(
    environment: Environment,
) -> None:
    with pytest.raises(MissingError, match="Those that there are: etcd, kube-apiserver"):
        await print_logs(environment.name, "nginx", lines=1, follow=False)


def test_new_lines_are_printed_once_also_after_a_rotation(tmp_path: Path) -> None:
    path, out = tmp_path / "etcd.log", io.StringIO()
    path.write_text("old\n")
    tail = Tail(path, named=False)
    tail.print_last(0, out)
    with path.open("a") as file:
        file.write("new\n")
    tail.print_new(out)
    tail.print_new(out)
    assert out.getvalue() == "new\n"
    path.write_text("a\n")
    tail.print_new(out)
    assert out.getvalue() == "new\na\n"
