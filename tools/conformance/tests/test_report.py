"""Reports as text, JSON, JUnit and Markdown, and the docstrings that rules come from."""

import json
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import pytest
from capelin_conformance.providers import BEHAVIOUR_RULES, COMPONENT_RULES, KIND_RULES, rule
from capelin_conformance.providers.rules import parse_docstring
from capelin_conformance.report import ConformanceReport, Result, render

REPORT = ConformanceReport(
    "infra-machine: DeskMachine",
    (
        Result("scope", "It is namespaced.", "ok", seconds=0.5),
        Result(
            "quiet",
            "It is quiet.",
            "failed",
            ("2 writes | of status", "a\x1bb"),
            hint="Write less.",
            source="https://example.com/quiet",
        ),
        Result("wildcards", "No wildcards.", "advice", ("verbs",)),
        Result("pausing", "It pauses.", "untried", reason="no machine"),
        Result("template", "It has one.", "inapplicable", reason="no ClusterClass"),
    ),
)


def test_text() -> None:
    assert render(REPORT, "text").splitlines() == [
        "infra-machine: DeskMachine",
        "ok      scope     It is namespaced.",
        "FAILED  quiet     It is quiet.",
        "          problem: 2 writes | of status",
        "          problem: a\x1bb",
        "          fix:     Write less.",
        "          source:  https://example.com/quiet",
        "advice  wildcards No wildcards.",
        "          problem: verbs",
        "untried pausing   It pauses.",
        "          reason:  no machine",
        "n/a     template  It has one.",
        "          reason:  no ClusterClass",
        "5 rules: 1 ok, 1 FAILED, 1 advice, 1 untried, 1 n/a",
    ]


def test_json() -> None:
    data = json.loads(render(REPORT, "json"))
    assert data["passed"] is False
    assert data["results"][1] == {
        "name": "quiet",
        "requirement": "It is quiet.",
        "outcome": "failed",
        "problems": ["2 writes | of status", "a\x1bb"],
        "hint": "Write less.",
        "source": "https://example.com/quiet",
        "reason": "",
        "seconds": 0.0,
    }


def test_junit() -> None:
    suite = ET.fromstring(render(REPORT, "junit"))  # noqa: S314 - our own text
    counts = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "5", "failures": "1", "errors": "0", "skipped": "2"}
    failures = suite.findall("testcase/failure")
    assert [(failure.text or "").splitlines()[:2] for failure in failures] == [
        ["2 writes | of status", "a?b"]
    ]


def test_markdown() -> None:
    lines = render(REPORT, "markdown").splitlines()
    assert lines[0] == "## infra-machine: DeskMachine"
    cells = r"FAILED | [quiet](https://example.com/quiet) | It is quiet. | 2 writes \| of status; a"
    assert any(line.startswith(f"| {cells}") for line in lines)


def test_advice_does_not_fail_a_report() -> None:
    results = tuple(result for result in REPORT.results if result.outcome != "failed")
    assert ConformanceReport("", results).passed
    assert not REPORT.passed


def test_docstring_states_requirement_source_and_fix() -> None:
    text = """It is
    namespaced.

    Source: *#scope
    Fix: set the
    scope.
    """
    assert parse_docstring(text) == ("It is namespaced.", "*#scope", "set the scope.")


@pytest.mark.parametrize("text", ["", "It is.\n\nSource: a", "It is.\n\nFix: b"])
def test_incomplete_docstring_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="docstring of a check"):
        parse_docstring(text)


def test_rule_comes_from_its_check() -> None:
    @rule("infra-machine", advice=True)
    def long_name(_: object) -> Iterator[str]:
        """It is long.

        Source: *#KIND-name
        Fix: shorten it.
        """
        yield "too long"

    assert (long_name.name, long_name.requirement, long_name.hint) == (
        "long-name",
        "It is long.",
        "shorten it.",
    )
    book = "https://cluster-api.sigs.k8s.io/developer/providers/contracts"
    assert long_name.source("infra-machine") == f"{book}/infra-machine#inframachine-name"
    assert [*long_name.check(object())] == ["too long"]


def test_names_are_unique() -> None:
    kinds = [rule.name for rule in (*KIND_RULES, *BEHAVIOUR_RULES)]
    assert len(kinds) == len({*kinds})
    components = [rule.name for rule in COMPONENT_RULES]
    assert len(components) == len({*components})
