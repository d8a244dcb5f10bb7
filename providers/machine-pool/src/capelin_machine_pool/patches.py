"""Values for merge patches, which keep fields that they do not name."""

from capelin.api import Model, Unstructured, wire_name


def replacing(value: Model) -> Unstructured:
    """A patch that replaces a whole value: fields that it does not have are removed."""
    return dict.fromkeys(map(wire_name, type(value).model_fields)) | value.dump()
