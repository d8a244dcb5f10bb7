"""The base class of the resources in `capelin_infra.pulumi.resources`."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, ClassVar

import pulumi


class BaseResource(pulumi.CustomResource):
    """Registers a resource under the names that the engine has for its properties."""

    _token: ClassVar[str]
    _names: ClassVar[Mapping[str, str]]
    """Attributes, and the engine's names of them."""

    def __init__(
        self,
        resource_name: str,
        inputs: Mapping[str, Any],
        opts: pulumi.ResourceOptions | None,
    ) -> None:
        given = {name: value for name, value in inputs.items() if value is not None}
        # The plugin is in this package: they have the same version.
        options = pulumi.ResourceOptions.merge(
            pulumi.ResourceOptions(version=version("capelin")), opts
        )
        super().__init__(
            self._token, resource_name, {**dict.fromkeys(self._names), **given}, options
        )

    def translate_input_property(self, prop: str) -> str:
        """The engine's name of an attribute."""
        return self._names.get(prop, prop)

    def translate_output_property(self, prop: str) -> str:
        """The attribute of a property."""
        return next((name for name, known in self._names.items() if known == prop), prop)
