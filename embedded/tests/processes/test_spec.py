import dataclasses
from pathlib import Path
from typing import Any

import pytest
from capelin_embedded.processes import Command, Limits, ProcessSpec
from capelin_embedded.processes.spec import check_specs

BASE = Command(("/bin/sleep", "9"), {"A": "1", "B": "2"}, Path("/srv"), Limits(nice=3))


def declared(name: str, *after: str) -> ProcessSpec:
    return ProcessSpec(name=name, command=BASE, after=after)


def test_the_hash_does_not_depend_on_the_order_of_the_environment() -> None:
    reordered = dataclasses.replace(BASE, environment={"B": "2", "A": "1"})
    assert reordered.hash == BASE.hash


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(BASE, arguments=("/bin/sleep", "10")),
        dataclasses.replace(BASE, arguments=("/bin/sleep 9",)),
        dataclasses.replace(BASE, environment={"A": "1", "B": "3"}),
        dataclasses.replace(BASE, environment={"A": "1"}),
        dataclasses.replace(BASE, directory=None),
        dataclasses.replace(BASE, limits=Limits(nice=4)),
    ],
)
def test_the_hash_changes_with_each_setting(
    other: Command,
) -> None:
    assert other.hash != BASE.hash


def test_limits_set_variables_for_go() -> None:
    limits = Limits(memory_bytes=100_000_000, cpus=1.5)
    assert limits.environment() == {"GOMEMLIMIT": "90000000B", "GOMAXPROCS": "2"}
    assert Limits().environment() == {}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"memory_bytes": 0}, "memory limit must be positive"),
        ({"cpus": -1.0}, "CPU limit must be positive"),
        ({"nice": 20}, "from 0 to 19"),
        ({"timer_slack": -1.0}, "slack must not be negative"),
    ],
)
def test_invalid_limits_fail(limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits(**limits)


@pytest.mark.parametrize("name", ["", "../etcd", "a/b", ".hidden", "Etcd", "a" * 101, "a-"])
def test_a_name_must_be_a_valid_file_name(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a process"):
        declared(name)


def test_check_specs_rejects_duplicate_names() -> None:
    with pytest.raises(ValueError, match="two processes have the name 'a'"):
        check_specs([declared("a"), declared("a")])


def test_check_specs_rejects_an_undeclared_dependency() -> None:
    with pytest.raises(ValueError, match="'a' starts after 'b', which is not declared"):
        check_specs([declared("a", "b")])


def test_check_specs_rejects_a_cycle() -> None:
    with pytest.raises(ValueError, match="processes wait for each other"):
        check_specs([declared("a", "b"), declared("b", "a")])
