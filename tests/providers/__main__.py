"""Checks real providers with `capelin conformance`: `python -m tests.providers [NAME...]`.

It starts Cluster API with its kubeadm and Dev providers, writes the results to `results.json` and
the documents, and fails if they have changed.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from capelin_conformance.report import Outcome
from capelin_embedded.binaries import CLUSTER_API, Binaries, Project

from .catalog import (
    ENVIRONMENT,
    FOLDER,
    PROVIDERS,
    RESULTS,
    SHOWN,
    Check,
    RealProvider,
    read_results,
    table,
)

_CAPELIN = (sys.executable, "-m", "capelin_cli")
_NAMED: tuple[Outcome, ...] = ("failed", "advice", "untried")
_WORDS: dict[Outcome, str] = {"ok": "ok", "failed": "FAILED", "inapplicable": "n/a"}


async def _source(project: Project, source: str) -> Path:
    return await Binaries().module_dir(source if project is CLUSTER_API else project)


def render_manifests(provider: RealProvider, into: Path) -> None:
    """Write the manifests and the metadata of a provider into a folder."""
    # Only one of the modules of Cluster API has the metadata.
    root = asyncio.run(_source(provider.project, provider.project.name))
    shutil.copyfile(root / "metadata.yaml", into / "metadata.yaml")
    source = asyncio.run(_source(provider.project, provider.source))
    kubectl = asyncio.run(Binaries().path("kubectl"))
    with (into / f"{provider.type}-components.yaml").open("wb") as file:
        folder = source / provider.folder / "config/default"
        subprocess.run([kubectl, "kustomize", folder], check=True, stdout=file)


def check(provider: RealProvider, chosen: Check, manifests: Path) -> str:
    """The result of a check: the number of rules by outcome, and the names of broken ones."""
    arguments = [*chosen.arguments(FOLDER / "samples"), f"--manifests={manifests}", "--output=json"]
    ran = subprocess.run(
        [*_CAPELIN, "conformance", *arguments], check=False, stdout=subprocess.PIPE, text=True
    )
    if not ran.stdout:
        raise SystemExit(f"capelin conformance {chosen.command} has failed for {provider.title}")
    report = json.loads(ran.stdout)
    names: dict[Outcome, list[str]] = {}
    for result in report["results"]:
        # Without samples, the table shows that only the manifests were checked.
        if chosen.samples or result["name"] != "behaviour":
            names.setdefault(result["outcome"], []).append(f"`{result['name']}`")
    return ", ".join(
        f"{len(names[outcome])} {_WORDS.get(outcome, outcome)}"
        + (f" ({', '.join(names[outcome])})" if outcome in _NAMED else "")
        for outcome in ("ok", "inapplicable", *_NAMED)
        if outcome in names
    )


def main(chosen: list[str]) -> int:
    """Check the named providers, or all."""
    before = read_results()
    results = {provider.title: dict(before.get(provider.title, {})) for provider in PROVIDERS}
    environment = ("-e", ENVIRONMENT)
    up = [*_CAPELIN, "up", *environment, "--management-only", "--with=kubeadm,dev"]
    subprocess.run(up, check=True)
    try:
        for provider in PROVIDERS:
            if chosen and provider.name not in chosen:
                continue
            with tempfile.TemporaryDirectory(prefix="capelin-providers-") as name:
                render_manifests(provider, Path(name))
                results[provider.title] = {
                    each.command: check(provider, each, Path(name)) for each in provider.checks
                }
            for command, result in results[provider.title].items():
                print(f"{provider.title}: {command}: {result}")  # noqa: T201
    finally:
        subprocess.run([*_CAPELIN, "down", *environment, "--yes"], check=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    SHOWN.write(table(results))
    return int(results != before)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
