"""Descriptions of fields come from the docstrings in the source."""

from typing import Annotated

from annotated_types import MaxLen
from capelin.api import DescribedModel, Model, described_fields
from pydantic import BaseModel, Field


class Boat(Model):
    """A model."""

    name: Annotated[str, MaxLen(20)]
    """Name of the boat.

    Painted on its bow.
    """
    length: int = 1
    crew: int = Field(default=1, description="Number of sailors.")
    """The description of the field takes precedence."""

    class Sail(Model):
        """A class within a class."""

        area: int = 0
        """In square metres."""


class Trawler(Boat):
    """A model that inherits fields."""

    length: int = 2
    """From bow to stern."""
    crew: int = 2


def descriptions(model: type[BaseModel]) -> dict[str, str | None]:
    return {name: field.description for name, field in described_fields(model).items()}


def test_a_docstring_below_a_field_is_its_description() -> None:
    assert descriptions(Boat) == {
        "name": "Name of the boat.\n\nPainted on its bow.",
        "length": None,
        "crew": "Number of sailors.",
    }
    assert descriptions(Boat.Sail) == {"area": "In square metres."}


def test_a_redeclared_field_has_only_its_own_docstring() -> None:
    assert descriptions(Trawler) == {
        "name": "Name of the boat.\n\nPainted on its bow.",
        "length": "From bow to stern.",
        "crew": None,
    }


def test_a_class_in_a_function_has_descriptions() -> None:
    class Local(Model):
        """A model of one function."""

        depth: int = 0
        """How deep."""

    assert descriptions(Local) == {"depth": "How deep."}


def test_a_model_without_source_has_no_descriptions() -> None:
    made = type("Made", (Model,), {"__annotations__": {"depth": int}, "__module__": "nowhere"})
    assert descriptions(made) == {"depth": None}


def test_the_json_schema_of_a_described_model_has_descriptions() -> None:
    class Chart(DescribedModel):
        """A model with a JSON schema."""

        scale: int = 1
        """How many to one."""

    assert Chart.model_json_schema()["properties"]["scale"]["description"] == "How many to one."
