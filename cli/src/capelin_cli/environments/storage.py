"""Storage migration of kinds, in an environment or in any cluster."""

import sys
from collections.abc import Sequence
from pathlib import Path

from capelin.api.core import CustomResourceDefinition
from capelin.client import Client, Config, ConfigError
from capelin.errors import InvalidInputError, UserError
from capelin.provider import Migration, StoragePlan, migrate_storage, storage_plan

from capelin_cli.environments.connection import client_of, find_environment

_EVERY = 100
_MIGRATED = "All objects are stored in the current version of their kind."


def _client(environment: str, kubeconfig: Path | None, context: str | None) -> Client:
    if kubeconfig is None and context is None:
        return client_of(find_environment(environment))
    try:
        config = Config.find(kubeconfig, context)
    except ConfigError as error:
        raise InvalidInputError(
            "The kubeconfig cannot be used.",
            reason=str(error),
            hint="Correct --kubeconfig and --context.",
        ) from None
    return Client(config, manager="capelin-migrate")


async def migrate(
    names: Sequence[str],
    environment: str,
    kubeconfig: Path | None,
    context: str | None,
    *,
    dry_run: bool,
) -> None:
    """Migrate CRDs. Without names, list those with several stored versions.

    Raises:
        UserError: The API server rejected objects, or the cluster does not exist.
    """
    async with _client(environment, kubeconfig, context) as client:
        if not names:
            listing = await client.list(CustomResourceDefinition.resource)
            plans = [plan for plan in map(storage_plan, listing.items) if plan.old]
            texts = [*map(_versions, plans)] or [_MIGRATED]
            print("\n".join(texts))  # noqa: T201 - the result of the command
        failed: list[str] = []
        for name in names:

            def show(done: int, total: int, name: str = name) -> None:
                if done % _EVERY == 0:
                    sys.stderr.write(f"{name}: {done} of {total} objects\n")

            result = await migrate_storage(client, name, dry_run=dry_run, progress=show)
            print(_summary(result, dry_run=dry_run))  # noqa: T201 - the result of the command
            failed += [f"{name}: {failure}" for failure in result.failures]
    if failed:
        raise UserError(
            f"{len(failed)} objects stay in an old version.",
            reason="\n  ".join(failed[:10]),
            hint="Correct or delete them, and run the same command again.",
        )


def _versions(plan: StoragePlan) -> str:
    return f"{plan.name}: objects may be stored in {', '.join(plan.old)} besides {plan.stored}"


def _summary(result: Migration, *, dry_run: bool) -> str:
    plan = result.plan
    if not plan.old:
        return f"{plan.name}: all objects are stored in {plan.stored}"
    if dry_run:
        return f"{_versions(plan)}; {result.objects} objects to write"
    if result.failures:
        return f"{plan.name}: {len(result.failures)} of {result.objects} objects failed"
    old = ", ".join(plan.old)
    return (
        f"{plan.name}: {result.objects} objects are stored in {plan.stored}; {old} can be removed"
    )
