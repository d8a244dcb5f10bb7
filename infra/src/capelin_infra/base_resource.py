"""The base class of the resources in `capelin_infra.resources`."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, ClassVar

import pulumi

from capelin_infra.resource_types import ResourceType, semantic_version


class BaseResource(pulumi.CustomResource):
    """Registers a resource under the names that the engine has for its properties."""

    _kind: ClassVar[ResourceType]

    def __init__(
        self,
        resource_name: str,
        arguments: Mapping[str, Any],
        opts: pulumi.ResourceOptions | None,
    ) -> None:
        """`arguments` has the inputs by the names of the attributes. Ignores others."""
        values = {
            name: arguments.get(name) if name in self._kind.inputs.model_fields else None
            for name in self._kind.state.model_fields
        }
        # The plugin is in this package: they have the same version.
        options = pulumi.ResourceOptions(version=semantic_version(version("capelin")))
        options = pulumi.ResourceOptions.merge(options, opts)
        super().__init__(self._kind.token, resource_name, values, options)

    def translate_input_property(self, prop: str) -> str:
        """The engine's name of an attribute."""
        field = self._kind.state.model_fields.get(prop)
        return (field and field.alias) or prop

    def translate_output_property(self, prop: str) -> str:
        """The attribute of a property."""
        fields = self._kind.state.model_fields.items()
        return next((name for name, field in fields if field.alias == prop), prop)
