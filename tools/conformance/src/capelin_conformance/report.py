"""Results of conformance checks, and the formats in which they are reported."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal
from xml.etree import ElementTree as ET

Outcome = Literal["ok", "failed", "advice", "untried", "inapplicable"]
"""`advice`: Cluster API works without it. `untried`: the check could not judge the rule.
`inapplicable`: the rule is not for this implementation."""

ReportFormat = Literal["text", "json", "junit", "markdown"]

_WORDS: Final[dict[Outcome, str]] = {
    "ok": "ok",
    "failed": "FAILED",
    "advice": "advice",
    "untried": "untried",
    "inapplicable": "n/a",
}
# XML has no way to write these, not even escaped.
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of checking one rule."""

    name: str
    requirement: str
    outcome: Outcome
    problems: tuple[str, ...] = ()
    """The violations."""
    hint: str = ""
    """How to fix it."""
    source: str = ""
    """The document that states the rule."""
    reason: str = ""
    """Why the rule does not apply, or could not be judged."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The results of all rules for one implementation."""

    title: str
    results: tuple[Result, ...]
    seconds: float = 0.0
    """The time that the checks of the behaviour took."""

    @property
    def passed(self) -> bool:
        """Whether no rule failed. Advice does not count."""
        return not self.named("failed")

    def named(self, outcome: Outcome) -> list[str]:
        """The names of the rules with this outcome."""
        return [result.name for result in self.results if result.outcome == outcome]

    @property
    def summary(self) -> str:
        """The number of rules with each outcome, such as `20 rules in 95 s: 18 ok, 2 n/a`."""
        counts = [(word, len(self.named(outcome))) for outcome, word in _WORDS.items()]
        shown = ", ".join(f"{count} {word}" for word, count in counts if count)
        time = f" in {self.seconds:.0f} s" if self.seconds else ""
        return f"{len(self.results)} rules{time}: {shown or 'none'}"


def render(report: ConformanceReport, output: ReportFormat) -> str:
    """The report in one of the formats, without a final newline."""
    match output:
        case "text":
            return _text(report)
        case "json":
            return json.dumps({"passed": report.passed, **asdict(report)}, indent=2)
        case "junit":
            return _junit(report)
        case "markdown":
            return _markdown(report)


def _text(report: ConformanceReport) -> str:
    width = max((len(result.name) for result in report.results), default=0)
    lines = [report.title]
    for result in report.results:
        lines.append(f"{_WORDS[result.outcome]:7} {result.name:{width}} {result.requirement}")
        lines += [f"          problem: {problem}" for problem in result.problems]
        if result.reason:
            lines.append(f"          reason:  {result.reason}")
        if result.problems:
            lines += [f"          fix:     {result.hint}"] if result.hint else []
            lines += [f"          source:  {result.source}"] if result.source else []
    return "\n".join([*lines, report.summary])


def _junit(report: ConformanceReport) -> str:
    results = report.results
    skipped = sum(result.outcome in {"untried", "inapplicable"} for result in results)
    suite = ET.Element(
        "testsuite",
        {
            "name": report.title,
            "tests": str(len(results)),
            "failures": str(len(report.named("failed"))),
            "errors": "0",
            "skipped": str(skipped),
            "time": f"{sum(result.seconds for result in results):.3f}",
        },
    )
    for result in results:
        case = ET.SubElement(
            suite,
            "testcase",
            {"classname": report.title, "name": result.name, "time": f"{result.seconds:.3f}"},
        )
        details = _xml("\n".join((*result.problems, result.hint, result.source)))
        if result.outcome == "failed":
            ET.SubElement(case, "failure", {"message": result.requirement}).text = details
        elif result.outcome in {"untried", "inapplicable"}:
            ET.SubElement(case, "skipped", {"message": _xml(result.reason)})
        elif result.outcome == "advice":
            ET.SubElement(case, "system-out").text = details
    return ET.tostring(suite, encoding="unicode", xml_declaration=True)


def _xml(text: str) -> str:
    return _NOT_XML.sub("?", text)


def _markdown(report: ConformanceReport) -> str:
    rows = [
        (
            _WORDS[result.outcome],
            f"[{result.name}]({result.source})" if result.source else result.name,
            result.requirement,
            "; ".join(result.problems) or result.reason,
        )
        for result in report.results
    ]
    return "\n".join(
        [
            f"## {report.title}",
            "",
            report.summary,
            "",
            "| result | rule | requirement | details |",
            "|---|---|---|---|",
            *map(_row, rows),
        ]
    )


def _row(cells: Sequence[str]) -> str:
    escaped = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"
