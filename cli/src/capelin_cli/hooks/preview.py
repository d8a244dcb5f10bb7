"""A diff of the changes that patches would make in their templates."""

import base64
from collections.abc import Iterator
from difflib import unified_diff
from typing import Any

import yaml
from capelin.api import Unstructured
from capelin.errors import InvalidInputError
from capelin.runtime.topology import PatchError, UnreadablePatchError, apply_patch, same


def preview(request: Unstructured, response: Unstructured) -> Iterator[str]:
    """The lines of a diff for each template that changes."""
    patches: dict[str, list[Unstructured]] = {}
    for patch in response.get("items", []):
        patches.setdefault(patch["uid"], []).append(patch)
    if unknown := patches.keys() - {item["uid"] for item in request["items"]}:
        raise _unusable(
            "A patch is for no template of the request.",
            f"No item of the request has the uid {min(unknown)!r}.",
        )
    changed = False
    for item in request["items"]:
        before = after = item["object"]
        for patch in patches.get(item["uid"], []):
            after = _applied(after, patch)
        if not same(before, after):
            changed = True
            yield from _difference(_title(item), before, after)
    if not changed:
        yield "No template changes."


def _applied(template: Any, patch: Unstructured) -> Any:
    try:
        return apply_patch(template, patch["patchType"], base64.b64decode(patch["patch"]))
    except UnreadablePatchError as error:
        raise _unusable("A patch cannot be read.", f"{error}.") from None
    except PatchError as error:
        raise _unusable("A patch does not fit its template.", f"{error}.") from None


def _unusable(what: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        what,
        reason=why,
        hint="Correct the extension: Cluster API would report it in the Cluster's conditions.",
    )


def _title(item: Unstructured) -> str:
    holder, template = item["holderReference"], item["object"]
    return f"{template['kind']} of {holder['kind']} {holder['name']} ({holder['fieldPath']})"


def _difference(title: str, before: Any, after: Any) -> Iterator[str]:
    texts = [yaml.safe_dump(document, sort_keys=True).splitlines() for document in (before, after)]
    yield from unified_diff(texts[0], texts[1], f"{title}: now", f"{title}: patched", lineterm="")
