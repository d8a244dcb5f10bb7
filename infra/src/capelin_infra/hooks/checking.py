"""Checking an extension, and telling what came of it."""

import json as jsonlib

from capelin.errors import InvalidInputError
from capelin.runtime.calling import AddressError
from capelin.runtime.conformance import Report, Verdict, examine
from rich.console import Console

from capelin_infra.hooks.requests import Wanted
from capelin_infra.hooks.targets import Target


async def check(target: Target, wanted: Wanted, *, pure_only: bool, json: bool) -> bool:
    """Hold an extension against every rule, print it, and say whether it passed."""
    config = await target.config()
    try:
        report = await examine(
            target.address(config),
            scene=await wanted.scene(target.environment),
            settings=config.spec.settings,
            identity=target.identity(),
            catalog=target.catalog,
            pure_only=pure_only,
        )
    except AddressError as error:
        raise InvalidInputError(
            "Nobody can be called.", reason=f"{error}.", hint="Name other files."
        ) from None
    if json:
        print(jsonlib.dumps(_data(report), indent=2))  # noqa: T201
    else:
        _tell(report)
    return report.passed


def _word(verdict: Verdict) -> str:
    if not verdict.problems:
        return "ok"
    return "advice" if verdict.rule.advice else "FAILED"


def _data(report: Report) -> dict[str, object]:
    return {
        "passed": report.passed,
        "handlers": [handler.name for handler in report.handlers],
        "leftOut": list(report.left_out),
        "rules": [
            {
                "name": verdict.rule.name,
                "result": _word(verdict).lower(),
                "says": verdict.rule.says,
                "saw": list(verdict.problems),
                **({"do": verdict.rule.remedy} if verdict.problems else {}),
            }
            for verdict in report.verdicts
        ],
    }


def _tell(report: Report) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for verdict in report.verdicts:
        word = _word(verdict)
        console.print(f"{word:7} {verdict.rule.name:18} {verdict.rule.says}", markup=False)
        for problem in verdict.problems:
            console.print(f"          saw: {problem}", markup=False)
        if verdict.problems:
            console.print(f"          do:  {verdict.rule.remedy}", markup=False)
    for one in report.left_out:
        console.print(f"not called: {one}", markup=False)
    failed = sum(verdict.failed for verdict in report.verdicts)
    console.print(
        f"{len(report.handlers)} handlers, {len(report.verdicts)} rules, "
        + (f"{failed} failed." if failed else "all hold.")
    )
