"""Checks the manifests of providers against Cluster API's contracts, and prints the report."""

from pathlib import Path

from capelin.conformance.providers import (
    Contract,
    ProviderManifests,
    check_manifests,
    load_manifests,
    manifests_of,
)
from capelin.conformance.report import ReportFormat, render
from capelin.embedded.management import installed_providers
from capelin.errors import MissingError


def check(
    contract: Contract,
    path: Path | None,
    provider: str | None,
    kind: str | None,
    output: ReportFormat,
) -> bool:
    """Check a provider, print the report, and return whether no rule failed."""
    report = check_manifests(_manifests(path, provider), contract, kind)
    print(render(report, output))  # noqa: T201 - asked for
    return report.passed


def _manifests(path: Path | None, provider: str | None) -> ProviderManifests:
    if path is not None:
        return load_manifests(path)
    providers = installed_providers()
    for installed in providers:
        if provider in {installed.name, installed.label}:
            return manifests_of(installed)
    known = ", ".join(installed.label for installed in providers) or "none"
    raise MissingError(
        f"No installed package has a provider {provider}.",
        reason=f"Installed providers: {known}.",
        hint="Name one of them, or its components with --manifests.",
    )
