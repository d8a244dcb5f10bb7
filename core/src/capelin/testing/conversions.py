"""Property tests of the conversions between the versions of a provider's kinds."""

from collections.abc import Iterable
from itertools import permutations
from typing import Any, Final

from hypothesis import Phase, assume, given, settings

from capelin.api import Unstructured, convert_json, lost_fields, violations
from capelin.provider import Provider, needs_webhook
from capelin.testing.values import fitting

_PHASES: Final = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
"""Without the explanation of a failure: the error names the field, and it takes seconds."""


def check_conversions(provider: Provider, *, kept: Iterable[str] = ()) -> None:
    """Check with generated objects that conversions to each other version and back lose nothing.

    It does nothing for kinds with one version. Templates are checked like the kinds that they make.

    Args:
        provider: The provider with the kinds.
        kept: Fields such as `Fish.spec.fins` that another version cannot express. An annotation
            keeps their values.

    Raises:
        AssertionError: A conversion fails, its result is invalid, or it loses another field.
    """
    for definition in filter(needs_webhook, provider.crds):
        spec = definition["spec"]
        for source, target in permutations(spec["versions"], 2):
            _check_pair(spec["group"], spec["names"]["kind"], source, target["name"], {*kept})


def _check_pair(group: str, kind: str, source: Unstructured, target: str, kept: set[str]) -> None:
    version = source["name"]
    way = f"{kind} from {version} to {target}"

    @settings(phases=_PHASES)
    @given(_contents(source["schema"]["openAPIV3Schema"]))
    def check(content: Unstructured) -> None:
        identity = {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": {"name": "a"}}
        obj = {**identity, **content}
        assume(not violations(obj))
        converted = convert_json(obj, f"{group}/{target}")
        if problems := violations(converted):
            raise AssertionError(f"the conversion of {way} makes an invalid object: {problems}")
        paths = lost_fields(obj, f"{group}/{target}")
        if lost := sorted({_field(kind, path) for path in paths} - kept):
            raise AssertionError(
                f"the conversion of {way} and back loses {', '.join(lost)}: convert these fields,"
                " or name them in `kept`"
            )
        if convert_json(converted, f"{group}/{version}") != obj:
            raise AssertionError(f"the conversion of {way} and back changes {obj}")

    check()


def _contents(schema: Unstructured) -> Any:
    fields = {k: v for k, v in schema["properties"].items() if k in {"spec", "status"}}
    required = [name for name in schema.get("required", []) if name in fields]
    return fitting({"properties": fields, "required": required})


def _field(kind: str, path: str) -> str:
    """The name of a field of a kind, which is the same in its template."""
    inside = path.removeprefix("spec.template.")
    return f"{kind.removesuffix('Template')}.{inside}"
