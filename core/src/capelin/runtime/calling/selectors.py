"""Whether labels are those that a selector means, as Kubernetes reads selectors."""

from collections.abc import Mapping

from capelin.api.views.core import LabelSelector


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Whether all that the selector says is true of these labels; nothing said is true of all.

    Raises:
        ValueError: it has an operator that Kubernetes does not know.
    """
    if selector is None:
        return True
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _holds(one, labels) for one in selector.match_expressions
    )


def selects_everything(selector: LabelSelector | None) -> bool:
    """Whether nothing has to be known about labels."""
    return selector is None or not (selector.match_labels or selector.match_expressions)


def _holds(one: LabelSelector.Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(one.key)
    match one.operator:
        case "In":
            return value in one.values
        case "NotIn":
            # A label that is not there is not among the values either.
            return value not in one.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            raise ValueError(f"a selector has no operator {one.operator!r}")
