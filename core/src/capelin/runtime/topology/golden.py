"""Whether handlers still do to templates what they did when they were released.

Another patch from the same handler rolls out every machine of every cluster that uses it. So a
handler that is released stays as it is, and what is new gets a handler of its own, which
ClusterClasses name when they are ready for it. A folder in an extension's tests holds that down:

    released/requests/three-workers.json         a request for `GeneratePatches`
    released/log-level-v1/three-workers.json     what the handler log-level-v1 answered it
    released/examples.json                       which examples each handler was recorded with

The last is written for those who would take an example away: its files alone cannot tell.
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
    """What the handlers do otherwise than the folder says, in sentences.

    A patch may say the same in other words; what counts is the template that comes of it.
    """
    handlers, recorded = _handlers(extension), _recorded(folder)
    there = {example.stem for example in _examples(folder)}
    problems = [
        f"{name} is gone, and with it the clusters whose ClusterClass names it; bring it back, or,"
        f" when none names it, remove the folder {name} and its entry in {_LIST}"
        for name in recorded.keys() - handlers.keys()
    ]
    if recorded and not (folder / _LIST).exists():
        problems.append(
            f"{_LIST} is not there, which tells what was recorded; bring it back, or record"
        )
    for name, examples in recorded.items():
        problems += [
            f"{name} was recorded with the example {example}, which is gone; bring"
            f" requests/{example}.json back"
            for example in examples - there
        ]
    for name, handler in handlers.items():
        for example in _examples(folder):
            file = folder / name / example.name
            if not file.exists():
                problems.append(
                    f"{name} was recorded with an answer for {example.stem}, which is gone; bring"
                    f" {name}/{file.name} back"
                    if example.stem in recorded.get(name, ())
                    else f"{name} has no answer for {example.stem}; record it before release"
                )
                continue
            request = json.loads(example.read_bytes())
            now = await respond(handler, request)
            if not same(_effect(request, json.loads(file.read_bytes())), _effect(request, now)):
                problems.append(
                    f"{name} answers {example.stem} otherwise than it did, which would roll out"
                    " machines; leave it as it was and give what is new a handler of its own"
                )
    return sorted(problems)


async def record_patches(extension: Extension, folder: Path) -> list[Path]:
    """Record the answers that are missing, and only those; returns their files.

    Raises:
        ValueError: a handler changes nothing in any example, so that its answers would guard
            nothing. It is not recorded.
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
        if answers and all(map(_is_empty, answers.values())):
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
            f"{', '.join(idle)} would patch no template of any example; add a request to"
            " requests/ with templates and variables for which it does"
        )
    return written


async def respond(handler: Handler, request: Unstructured) -> Unstructured:
    """What a handler of `GeneratePatches` answers, with its patches as people read them."""
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


def _is_empty(answered: Unstructured) -> bool:
    return answered["status"] == "Success" and not answered["patches"]


def _effect(request: Unstructured, answered: Unstructured) -> Unstructured:
    """What becomes of the templates, and what is said."""
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
    """The examples that each handler was recorded with, be they still there or not."""
    listed = folder / _LIST
    lists: dict[str, list[str]] = json.loads(listed.read_bytes()) if listed.exists() else {}
    recorded = {name: set(examples) for name, examples in lists.items()}
    for path in folder.iterdir():
        if path.is_dir() and path.name != "requests":
            recorded.setdefault(path.name, set()).update(file.stem for file in path.glob("*.json"))
    return recorded
