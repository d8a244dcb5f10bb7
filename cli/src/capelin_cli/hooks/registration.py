"""Registering an extension under development with an environment, in one command."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from capelin.api.capi import (
    ExtensionClientConfig,
    ExtensionConfig,
    ExtensionConfigSpec,
    ExtensionHandler,
)
from capelin.errors import InvalidInputError, NotReadyError
from capelin.pki import Leaf, read_ca
from capelin.runtime.client import CallError, EndpointError, discover
from capelin.runtime.v1alpha1 import CLUSTER_API
from capelin_embedded.processes import private_folder, write_private
from rich.console import Console

from capelin_cli.environments.connection import client_of, find_environment
from capelin_cli.hooks.targets import Target, registered_as
from capelin_cli.terminal.checklist import Checklist
from capelin_cli.terminal.waiting import wait_for

_HOSTS = ("localhost",)
_ADDRESSES = ("127.0.0.1", "::1")
_UNCONFIRMED = " (this machine cannot call the extension, so the list can be an earlier one)"
_REGISTERED_AT = "capelin.cluster.x-k8s.io/registered-at"
"""An annotation that changes, so that Cluster API discovers an unchanged ExtensionConfig again."""


@dataclass(frozen=True, slots=True)
class Registration:
    """An extension to register, and its environment."""

    name: str
    url: str
    environment: str
    ca: Path | None = None
    settings: tuple[str, ...] = ()
    """Each is `key=value`."""


async def register(registration: Registration, *, within: float) -> None:
    """Create or change an ExtensionConfig, and wait until Cluster API has its present handlers.

    Without a CA, the certificate must be the environment's: see `write_certificate`.
    """
    environment = find_environment(registration.environment)
    ca = registration.ca or environment.authority
    config = extension_config(registration, ca.read_bytes())
    config.metadata.annotations[_REGISTERED_AT] = datetime.now(UTC).isoformat()
    async with client_of(environment) as client:
        await client.apply(config)
        present = await _present_handlers(registration, config)
        with (
            Checklist(Console()).shown() as checklist,
            checklist.step(f"extension {registration.name} registered") as line,
        ):

            async def missing() -> str | None:
                return not_discovered(await client.get(ExtensionConfig, registration.name), present)

            title = f"extension {registration.name}"
            await wait_for(title, missing, within, checklist.showing(line))
            found = await client.get(ExtensionConfig, registration.name)
            handlers = [
                f"{handler.name} ({handler.request_hook.hook})" for handler in found.status.handlers
            ]
            line.detail = ", ".join(handlers) + ("" if present is not None else _UNCONFIRMED)


def extension_config(registration: Registration, ca: bytes) -> ExtensionConfig:
    """The ExtensionConfig of a registration."""
    if not registration.url.startswith("https://"):
        raise InvalidInputError(
            f"{registration.url} cannot be registered.",
            reason="Cluster API calls extensions over HTTPS only.",
            hint="Write it as https://localhost:9443.",
        )
    settings: dict[str, str] = {}
    for text in registration.settings:
        key, separator, value = text.partition("=")
        if not (key and separator):
            raise InvalidInputError(
                f"{text!r} is not a setting.",
                reason="It has no name.",
                hint="Write it as NAME=VALUE.",
            )
        settings[key] = value
    config = ExtensionConfig.of(registration.name)
    client_config = ExtensionClientConfig(url=registration.url, ca_bundle=ca)
    config.spec = ExtensionConfigSpec(client_config=client_config, settings=settings)
    return config


async def _present_handlers(
    registration: Registration, config: ExtensionConfig
) -> list[ExtensionHandler] | None:
    """The handlers that the extension lists now. None if this machine cannot call it."""
    target = Target(registration.name, registration.environment)
    endpoint = target.endpoint(config)
    try:
        async with target.connections() as connections:
            handlers = await discover(
                connections, endpoint, name=registration.name, catalog=CLUSTER_API
            )
    except (CallError, EndpointError):
        # Cluster API may reach it, or reports why it does not.
        return None
    return [ExtensionHandler.read(handler.dump()) for handler in handlers]


def not_discovered(
    config: ExtensionConfig, present: Sequence[ExtensionHandler] | None = None
) -> str | None:
    """Why Cluster API does not have an extension's present handlers yet."""
    for condition in config.status.conditions:
        if condition.type == "Discovered":
            is_current = condition.observed_generation in {None, config.metadata.generation}
            if condition.status != "True" or not is_current:
                return condition.message or condition.reason
            known = _comparable(config.status.handlers, config.name)
            if present is not None and known != _comparable(present, config.name):
                return "Cluster API has not noticed its present handlers yet"
            return None
    return "Cluster API has not called it yet"


def _comparable(handlers: Iterable[ExtensionHandler], extension: str) -> set[tuple[object, ...]]:
    """Handlers with Cluster API's defaults, which only its own list contains."""
    return {
        (
            handler.name.removesuffix(f".{extension}"),
            *(handler.request_hook.api_version, handler.request_hook.hook),
            10 if handler.timeout_seconds is None else handler.timeout_seconds,
            handler.failure_policy or "Fail",
        )
        for handler in handlers
    }


async def unregister(name: str, environment: str) -> None:
    """Delete an ExtensionConfig."""
    async with client_of(find_environment(environment)) as client:
        config = await registered_as(client, name, hint="Name one of them.")
        await client.delete(ExtensionConfig, name, uid=config.uid)
    Console().print(f"Cluster API no longer calls extension {name}.", highlight=False)


def write_certificate(environment_name: str, folder: Path) -> list[Path]:
    """Write a serving certificate for an extension on this machine, and the CA of its clients.

    The environment's CA signs it, so `register` needs no CA. With the client CA, the extension
    answers only the environment's Cluster API.
    """
    environment = find_environment(environment_name)
    ca_certificate, ca_key = environment.authority, environment.authority.with_suffix(".key")
    if not (ca_certificate.exists() and ca_key.exists()):
        raise NotReadyError(
            f"Environment {environment_name} has no certificates yet.",
            reason="It was never started completely.",
            hint=f"Continue with capelin up -e {environment_name}.",
        )
    now = datetime.now(UTC)
    ca = read_ca(ca_certificate.read_bytes(), ca_key.read_bytes(), now)
    leaf = Leaf(common_name="extension", usages=("server",), dns_names=_HOSTS, addresses=_ADDRESSES)
    pair = leaf.issue(ca, now=now)
    private_folder(folder)
    files = {
        "tls.key": pair.private_key_pem,
        "tls.crt": pair.certificate_pem,
        "client-ca.crt": ca.certificate_pem,
    }
    for name, content in files.items():
        write_private(folder / name, content)
    return [folder / name for name in files]
