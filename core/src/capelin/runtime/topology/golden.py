"""Checks that handlers still make the same changes to templates as when they were released.

A different patch from the same handler rolls out every machine of every cluster that uses it. So a
released handler never changes. A new behavior gets its own handler, which ClusterClasses refer to
when they are ready for it. A folder in an extension's tests enforces that:

    released/requests/three-workers.json         a request for `GeneratePatches`
    released/log-level-v1/three-workers.json     the response of the handler log-level-v1
    released/examples.json                       the recorded examples of each handler

The last file detects deleted examples, which the other files cannot show.
"""

import json
from pathlib import Path
from typing import Any

import orjson

from capelin.api import Unstructured
from capelin.json_patches import apply_json_patch, apply_merge_patch
from capelin.runtime.dispatch import HandlerRunner
from capelin.runtime.extension import Extension, Handler
from capelin.runtime.messages import read
from capelin.runtime.topology.patches import same
from capelin.runtime.v1alpha1 import (
    GeneratePatches,
    GeneratePatchesRequest,
    GeneratePatchesResponse,
)

_LIST = "examples.json"


async def changed_patches(extension: Extension, folder: Path) -> list[str]:
    """The differences between the handlers and the folder, in sentences.

    A patch may use other steps: only the resulting template counts.
    """
    handlers, recorded = _handlers(extension), _recorded(folder)
    there = {example.stem for example in _examples(folder)}
    problems = [
        f"{name} no longer exists, but ClusterClasses may still use it. Restore it, or,"
        f" if none uses it, remove the folder {name} and its entry in {_LIST}"
        for name in recorded.keys() - handlers.keys()
    ]
    if recorded and not (folder / _LIST).exists():
        problems.append(
            f"{_LIST} with the list of examples is missing. Restore it, or record again"
        )
    for name, examples in recorded.items():
        problems += [
            f"{name}: the example {example} no longer exists. Restore requests/{example}.json"
            for example in examples - there
        ]
    for name, handler in handlers.items():
        for example in _examples(folder):
            file = folder / name / example.name
            if not file.exists():
                problems.append(
                    f"{name}: the response for {example.stem} no longer exists. Restore"
                    f" {name}/{file.name}"
                    if example.stem in recorded.get(name, ())
                    else f"{name} has no response for {example.stem}. Record one before the release"
                )
                continue
            request = json.loads(example.read_bytes())
            now = await respond(handler, request)
            if not same(_effect(request, json.loads(file.read_bytes())), _effect(request, now)):
                problems.append(
                    f"{name} now responds to {example.stem} differently, which would roll out"
                    " machines. Undo the change, and add a new handler for the new behavior"
                )
    return sorted(problems)


async def record_patches(extension: Extension, folder: Path) -> list[Path]:
    """Record only the missing responses. Returns their files.

    Raises:
        ValueError: A handler changes nothing in any example, so its responses would guard
            nothing. This does not record it.
    """
    written: list[Path] = []
    idle: list[str] = []
    for name, handler in _handlers(extension).items():
        files = {example: folder / name / example.name for example in _examples(folder)}
        answers = {
            file: json.loads(file.read_bytes())
            if file.exists()
            else await respond(handler, json.loads(example.read_bytes()))
            for example, file in files.items()
        }
        if answers and all(
            it["status"] == "Success" and not it["patches"] for it in answers.values()
        ):
            idle.append(name)
            continue
        for file in (file for file in answers if not file.exists()):
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(answers[file], indent=2) + "\n")
            written.append(file)
    if recorded := _recorded(folder):
        listed = {name: sorted(examples) for name, examples in sorted(recorded.items())}
        (folder / _LIST).write_text(json.dumps(listed, indent=2) + "\n")
    if idle:
        raise ValueError(
            f"{', '.join(idle)} would patch no template of any example. Add a request to"
            " requests/ with matching templates and variables"
        )
    return written


async def respond(handler: Handler, request: Unstructured) -> Unstructured:
    """The response of a handler of `GeneratePatches`, with readable patches."""
    answered = await HandlerRunner(handler).respond(orjson.dumps(request))
    response = read(GeneratePatchesResponse, orjson.loads(answered.body))
    patches = {
        item.uid: {"patchType": item.patch_type, "patch": orjson.loads(item.patch)}
        for item in response.items
    }
    return {
        "status": response.status,
        **({"message": response.message} if response.message else {}),
        "patches": [{"uid": uid, **patches[uid]} for uid in sorted(patches)],
    }


def _effect(request: Unstructured, answered: Unstructured) -> Unstructured:
    """The changed templates, and the status and message."""
    items = read(GeneratePatchesRequest, request).items
    templates: dict[str, Any] = {item.uid: item.object for item in items}
    for item in answered["patches"]:
        before = templates[item["uid"]]
        if item["patchType"] == "JSONPatch":
            templates[item["uid"]] = apply_json_patch(before, item["patch"])
        else:
            templates[item["uid"]] = apply_merge_patch(before, item["patch"])
    rest = {key: value for key, value in answered.items() if key != "patches"}
    return {**rest, "templates": templates}


def _handlers(extension: Extension) -> dict[str, Handler]:
    return {h.name: h for h in extension.handlers if h.hook is GeneratePatches}


def _examples(folder: Path) -> list[Path]:
    return sorted((folder / "requests").glob("*.json"))


def _recorded(folder: Path) -> dict[str, set[str]]:
    """The examples that each handler was recorded with, even if they no longer exist."""
    listed = folder / _LIST
    lists: dict[str, list[str]] = json.loads(listed.read_bytes()) if listed.exists() else {}
    recorded = {name: set(examples) for name, examples in lists.items()}
    for path in folder.iterdir():
        if path.is_dir() and path.name != "requests":
            recorded.setdefault(path.name, set()).update(file.stem for file in path.glob("*.json"))
    return recorded
