"""Checks providers against Cluster API's contracts, and prints the report."""

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from capelin.api import Unstructured
from capelin.api.core import CustomResourceDefinition
from capelin.client import Client
from capelin.errors import InvalidInputError, MissingError, NotReadyError
from capelin_conformance.providers import (
    BENCHES,
    Contract,
    ManagerProcess,
    ProviderManifests,
    Subject,
    Timing,
    World,
    check_behaviour,
    check_manifests,
    combined,
    load_manifests,
    load_samples,
    manifests_of,
)
from capelin_conformance.report import ConformanceReport, ReportFormat, render
from capelin_embedded.management import (
    SubstitutionError,
    apply_manifests,
    installed_providers,
    is_webhook,
    render_template,
    without_replaced,
)

from capelin_cli.environments.connection import client_of, find_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceRequest:
    """What to check, and where."""

    contract: Contract
    manifests: Path | None = None
    provider: str | None = None
    kind: str | None = None
    samples: Path | None = None
    manager: str | None = None
    environment: str | None = None
    patience: float = 60.0
    strict: bool = False
    """Whether untried rules fail the report."""


async def check(request: ConformanceRequest, output: ReportFormat) -> bool:
    """Check a provider, print the report, and return whether it passed."""
    manifests = _manifests(request)
    report = check_manifests(manifests, request.contract, request.kind)
    if request.environment is not None:
        report = combined(report, await _behaviour(request, manifests, request.environment))
    print(render(report, output))  # noqa: T201 - asked for
    return report.passed and not (request.strict and report.named("untried"))


def _manifests(request: ConformanceRequest) -> ProviderManifests:
    if request.manifests is not None:
        return load_manifests(request.manifests)
    providers = installed_providers()
    for provider in providers:
        if request.provider in {provider.name, provider.label}:
            return manifests_of(provider)
    known = ", ".join(provider.label for provider in providers) or "none"
    raise MissingError(
        f"No installed package has a provider {request.provider}.",
        reason=f"Installed providers: {known}.",
        hint="Name one of them, or its components with --manifests.",
    )


async def _behaviour(
    request: ConformanceRequest, manifests: ProviderManifests, name: str
) -> ConformanceReport:
    if request.contract not in BENCHES:
        raise InvalidInputError(
            f"The behaviour of the contract {request.contract} cannot be checked.",
            reason=f"Contracts whose behaviour can be checked: {', '.join(BENCHES)}.",
            hint="Check the manifests without --environment.",
        )
    subject = Subject.of(manifests, request.contract, request.kind)
    samples = _samples(request.samples, subject.kind.kind)
    environment = find_environment(name)
    settings = environment.settings()
    if settings is None:
        raise NotReadyError(
            f"Environment {name} does not run.",
            reason="It was never started.",
            hint=f"Start it with capelin up -e {name}.",
        )
    async with client_of(environment) as client:
        world = World(
            client,
            subject,
            samples,
            Timing(patience=request.patience),
            settings.kubernetes_version,
        )
        if request.manager is not None:
            await _install(client, manifests)
        definition = subject.kind.crd_name
        if await client.find(CustomResourceDefinition, definition) is None:
            raise NotReadyError(
                f"Environment {name} does not have the kind {subject.kind.kind}.",
                reason=f"It has no CustomResourceDefinition {definition}.",
                hint="Install the provider, or run its manager with --manifests and --manager.",
            )
        if request.manager is None:
            return await check_behaviour(world)
        async with ManagerProcess.run(request.manager, client.config) as manager:
            return await _while_running(world, manager)


def _samples(path: Path | None, kind: str) -> list[Unstructured]:
    if path is None:
        return []
    samples = load_samples(path)
    if kind in {sample["kind"] for sample in samples}:
        return samples
    raise InvalidInputError(
        f"{path} has no sample of {kind}.",
        reason=f"Kinds in it: {', '.join(sample['kind'] for sample in samples) or 'none'}.",
        hint=f"Add an object of the kind {kind}, or leave --samples out.",
    )


async def _install(client: Client, manifests: ProviderManifests) -> None:
    """Install a provider's components, except its Deployment and its webhooks."""
    components: list[Unstructured] = []
    for file, text in manifests.texts.items():
        try:
            components += render_template(text, os.environ)
        except SubstitutionError as error:
            raise InvalidInputError(
                f"The components in {file} cannot be installed.",
                reason=f"{error}.",
                hint="Set the variables in the environment of the command, as for clusterctl.",
            ) from None
    # The manager runs outside of the cluster: no Service leads to its webhooks.
    chosen = [obj for obj in without_replaced(components) if not is_webhook(obj)]
    await apply_manifests(client, chosen)


async def _while_running(world: World, manager: ManagerProcess) -> ConformanceReport:
    checks = asyncio.create_task(check_behaviour(replace(world, manager=manager)))
    ended = asyncio.create_task(manager.wait())
    try:
        await asyncio.wait({checks, ended}, return_when=asyncio.FIRST_COMPLETED)
        if checks.done():
            return checks.result()
        raise manager.error()
    finally:
        for task in (checks, ended):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
