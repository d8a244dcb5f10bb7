"""The installation of a project that is one provider."""

from typing import Any

from capelin.contract import ProviderType
from capelin.provider import Provider
from capelin.yaml import read_yaml
from capelin_release.repository import provider_installation

ARGUMENTS = ("--state-folder=/data", "--ports=100")


def values_of(type_: ProviderType) -> Any:
    """The default values of the chart of a provider with arguments of its own."""
    provider = Provider("fish", type_, "v1.0.0", "fish", arguments=ARGUMENTS)
    (chart,) = provider_installation(
        provider, version="1.0.0", registry="registry.example", description="Fish."
    ).charts
    return read_yaml(chart.files["values.yaml"])


def test_a_provider_has_its_arguments_in_a_release() -> None:
    assert values_of("InfrastructureProvider")["args"] == [*ARGUMENTS]


def test_an_extension_has_its_arguments_and_two_replicas() -> None:
    values = values_of("RuntimeExtensionProvider")
    assert (values["args"], values["replicas"]) == ([*ARGUMENTS], 2)


def test_handlers_keep_their_names_in_a_release() -> None:
    assert values_of("RuntimeExtensionProvider")["extensionConfig"]["name"] == "fish"
