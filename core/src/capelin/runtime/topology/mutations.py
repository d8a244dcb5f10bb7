"""Patches for templates, from functions that change a template in place."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import orjson
from pydantic import BaseModel

from capelin.api import Model, Unstructured
from capelin.json_patches import PatchError
from capelin.runtime.extension import Call
from capelin.runtime.results import Failure
from capelin.runtime.topology.draft import Draft, UnexpectedTemplateError
from capelin.runtime.topology.patches import is_object, merge_patch
from capelin.runtime.topology.templates import Builtins, Selector, Template, TemplateRef
from capelin.runtime.topology.variables import RequestVariables, variable_schemas
from capelin.runtime.v1alpha1 import (
    DiscoverVariables,
    DiscoverVariablesResponse,
    GeneratePatches,
    GeneratePatchesRequestItem,
    GeneratePatchesResponse,
    GeneratePatchesResponseItem,
    HolderReference,
    PatchType,
)

VariablesT = TypeVar("VariablesT", bound=BaseModel)

Change = Callable[[Template[VariablesT]], None]

_SHOWN = 10
"""The number of problems that a message lists. A condition has no room for more."""


class NoVariables(Model):
    """For changes that depend only on the template and its user."""


@dataclass(frozen=True, slots=True)
class _Rule(Generic[VariablesT]):
    api_version: str | None
    selectors: tuple[Selector, ...]
    change: Callable[[Template[VariablesT]], None]

    def knows(self, template: Unstructured) -> bool:
        return self.api_version in (None, template.get("apiVersion"))

    def matches(self, ref: TemplateRef) -> bool:
        return not self.selectors or any(selector(ref) for selector in self.selectors)


class Mutations(Generic[VariablesT]):
    """Changes to templates, in the order of their registration, and a handler that applies them.

    mutations = Mutations(Variables)

    @mutations.on("KubeadmConfigTemplate", machine_deployments("default-*"))
    def log_level(template: Template[Variables]) -> None:
        arguments = template.mapping("joinConfiguration", "nodeRegistration")
        ...

    ext.handler(GeneratePatches, name="log-level-v1")(mutations.patches)
    """

    def __init__(
        self,
        variables: type[VariablesT],
        *,
        unknown_kinds: Literal["skip", "fail"] = "skip",
        patch_type: PatchType = "JSONPatch",
    ) -> None:
        """Start with no changes.

        Args:
            variables: The type of the variables that the changes use.
            unknown_kinds: How to treat a template without a change. `fail` detects a ClusterClass
                that moves to an API version that the extension does not support.
            patch_type: The kind of patches to return.

        Raises:
            VariableSchemaError: A ClusterClass does not support the variables.
        """
        self._variables = variables
        self._described = variable_schemas(variables)
        self._fails = unknown_kinds == "fail"
        self._patch_type: PatchType = patch_type
        self._rules: dict[str, list[_Rule[VariablesT]]] = {}

    def on(
        self, kind: str, *selectors: Selector, api_version: str | None = None
    ) -> Callable[[Change[VariablesT]], Change[VariablesT]]:
        """Register a change for templates of a kind that any of the selectors matches."""

        def register(change: Change[VariablesT]) -> Change[VariablesT]:
            self._rules.setdefault(kind, []).append(_Rule(api_version, selectors, change))
            return change

        return register

    def described(self, _call: Call[DiscoverVariables, Any]) -> DiscoverVariablesResponse:
        """Serve `DiscoverVariables`: the variables, with the schemas of their types."""
        return DiscoverVariablesResponse(status="Success", variables=self._described)

    def patches(self, call: Call[GeneratePatches, Any]) -> GeneratePatchesResponse:
        """Serve `GeneratePatches`: a patch for each template that a change altered.

        Raises:
            Failure: A variable or a template does not match the changes.
        """
        variables = RequestVariables(self._variables, call.request.variables)
        items: list[GeneratePatchesResponseItem] = []
        problems: set[str] = set()
        for item in call.request.items:
            try:
                draft = self._changed(item, variables)
                if draft is not None and (patch := self._patch(item, draft, variables)):
                    items.append(
                        GeneratePatchesResponseItem(
                            uid=item.uid, patch_type=self._patch_type, patch=orjson.dumps(patch)
                        )
                    )
            except Failure as failure:
                problems.add(failure.message)
        if problems:
            raise Failure(_joined(problems))
        return GeneratePatchesResponse(status="Success", items=items)

    def _changed(
        self, item: GeneratePatchesRequestItem, variables: RequestVariables[VariablesT]
    ) -> Draft | None:
        """The template after all changes, or `None` if none applies to it."""
        # The kind may be anything: only a string can be registered.
        rules = self._rules.get(str(item.object.get("kind")), ())
        known = [rule for rule in rules if rule.knows(item.object)]
        if not known:
            if self._fails:
                raise Failure(f"no change is for {_named(item, variables)}")
            return None
        ref = TemplateRef(item.holder_reference, Builtins(variables.builtin(item.variables)))
        matching = [rule for rule in known if rule.matches(ref)]
        if not matching:
            return None
        draft = Draft(item.object)
        template = Template(draft, variables.typed(item.variables), ref)
        try:
            for rule in matching:
                rule.change(template)
        except UnexpectedTemplateError as error:
            raise Failure(f"{_named(item, variables)}: {error}") from None
        return draft

    def _patch(
        self,
        item: GeneratePatchesRequestItem,
        draft: Draft,
        variables: RequestVariables[VariablesT],
    ) -> Any:
        try:
            if self._patch_type == "JSONPatch":
                return draft.json_patch()
            return merge_patch(item.object, draft.document)
        except PatchError as error:
            raise Failure(f"{_named(item, variables)}: {error}") from None


def _joined(problems: set[str]) -> str:
    # Cluster API sends the templates in another order every time.
    shown = sorted(problems)[:_SHOWN]
    more = len(problems) - len(shown)
    return "; ".join([*shown, f"and {more} more"] if more else shown)


def _named(item: GeneratePatchesRequestItem, variables: RequestVariables[Any]) -> str:
    """The template, with the same words for every attempt."""
    template, holder = item.object, item.holder_reference
    builtin = variables.builtin(item.variables)
    text = f"{template.get('kind')} {template.get('apiVersion')} at {holder.field_path}"
    return f"{text} of {' '.join([holder.kind, *_name_of(holder, builtin)])}"


def _name_of(holder: HolderReference, builtin: Any) -> Iterator[str]:
    # Until the objects exist, Cluster API generates new names each time, except the Cluster's.
    if holder.kind == "Cluster":
        yield holder.name
    elif is_object(builtin):
        for part in ("machineDeployment", "machinePool"):
            worker = builtin.get(part)
            if is_object(worker) and (name := worker.get("topologyName")):
                yield str(name)
