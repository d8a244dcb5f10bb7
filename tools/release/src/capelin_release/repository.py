"""The installation files of a release: charts, and a repository for clusterctl."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from capelin.provider import Provider
from capelin.yaml import read_yaml
from capelin_embedded.binaries import Binaries

from capelin_release.charts import Chart, dump_yaml, provider_chart
from capelin_release.components import FILES, render_components
from capelin_release.project import Release
from capelin_release.upstream import (
    cert_manager_chart,
    cert_manager_manifests,
    cluster_api_files,
)
from capelin_release.values import (
    ExtensionConfigValues,
    ExtensionValues,
    Image,
    ManagerValues,
    PodValues,
    WebhookManagerValues,
)


@dataclass(frozen=True, slots=True)
class Installation:
    """The installation of a project."""

    charts: Sequence[Chart]
    """All charts, by themselves."""
    providers: Sequence[tuple[Provider, Sequence[Chart]]]
    """Providers with the charts that their component files are rendered from: that of the pods, and
    that of the kinds if it is another."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """More assets of the release, by name."""
    with_cluster_api: bool = False
    """Whether Cluster API and cert-manager go with it, for places without a network."""


def provider_installation(
    provider: Provider, *, version: str, registry: str, description: str
) -> Installation:
    """The installation of a project that is one provider: a chart of the provider's own name."""
    image = Image(repository=f"{registry}/{provider.name}")
    arguments = [*provider.arguments]
    values: PodValues
    if provider.type == "RuntimeExtensionProvider":
        # ClusterClasses refer to handlers by this name.
        config = ExtensionConfigValues(name=provider.name)
        values = ExtensionValues(image=image, args=arguments, replicas=2, extension_config=config)
    elif provider.serves_webhooks:
        values = WebhookManagerValues(image=image, args=arguments, replicas=2)
    else:
        values = ManagerValues(image=image, args=arguments)
    chart = provider_chart(
        provider,
        values,
        name=provider.name,
        version=version,
        description=description,
        with_kinds=True,
    )
    return Installation([chart], [(provider, [chart])])


def add_installation(release: Release) -> bool:
    """Write charts and clusterctl's files into a release's folder, if its project has any.

    Returns whether Cluster API and cert-manager go with them.
    """
    if not release.settings.installation:
        return False
    module, _, name = release.settings.installation.partition(":")
    describe: Callable[..., Installation] = getattr(import_module(module), name)
    installation = describe(version=release.version, registry=release.settings.registry)
    asyncio.run(_write_all(release, installation))
    return installation.with_cluster_api


async def _write_all(release: Release, installation: Installation) -> None:
    sources, modified = release.tree / "clusterctl", release.commit.time
    await write_installation(
        release.out, installation, version=release.version, sources=sources, modified=modified
    )
    if installation.with_cluster_api:
        await write_upstream(release.out, modified=modified)


async def write_upstream(out: Path, *, modified: int) -> list[Path]:
    """Write Cluster API and cert-manager next to our own files. Returns the written files."""
    binaries = Binaries()
    chart = await cert_manager_chart(binaries)
    version = read_yaml(chart.files["Chart.yaml"])["version"]
    written = _write(out, {f"{chart.name}-{version}.tgz": chart.archive(modified)})
    manifests = await cert_manager_manifests(binaries, written[0])
    files = {
        **await cluster_api_files(binaries),
        # For clusterctl, cert-manager is a provider without a type.
        f"clusterctl/{chart.name}/{version}/cert-manager.yaml": manifests.encode(),
    }
    return written + _write(out, files)


async def write_installation(
    out: Path, installation: Installation, *, version: str, sources: Path, modified: int
) -> list[Path]:
    """Write charts and clusterctl's files. Returns the written files.

    Args:
        out: Gets the files as the assets of a release, and in `clusterctl/` as a local repository.
        installation: The charts and providers.
        version: Such as `0.1.0`.
        sources: The folder with `metadata.yaml`, cluster templates and ClusterClasses.
        modified: The time of all files in the charts' archives, in seconds since 1970.
    """
    archives = {
        f"{chart.name}-{version}.tgz": chart.archive(modified) for chart in installation.charts
    }
    assets = await _repository_files(installation.providers, version=version, sources=sources)
    kinds = {
        f"crds/{crd['metadata']['name']}.yaml": dump_yaml(crd).encode()
        for provider, _ in installation.providers
        for crd in provider.crds
    }
    return _write(out, {**archives, **assets, **kinds, **installation.files})


async def _repository_files(
    providers: Sequence[tuple[Provider, Sequence[Chart]]], *, version: str, sources: Path
) -> dict[str, bytes]:
    """The assets of a release, by name, and once more in a folder for each provider.

    clusterctl reads cluster templates only from the folder of an infrastructure provider.
    """
    shared = _templates(sources)
    binaries = Binaries()
    files: dict[str, bytes] = dict(shared)
    for provider, charts in providers:
        text = await render_components(provider, charts, binaries)
        own = {FILES[provider.type]: text.encode(), "metadata.yaml": shared["metadata.yaml"]}
        files |= own
        if provider.type == "InfrastructureProvider":
            own |= shared
        folder = f"clusterctl/{provider.label}/v{version}"
        files |= {f"{folder}/{name}": content for name, content in own.items()}
    return files


def _templates(sources: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(sources.glob("*.yaml"))}


def _write(out: Path, files: Mapping[str, bytes]) -> list[Path]:
    for name, content in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(content)
    return [out / name for name in files]
