"""The hooks that change, check and describe the templates of a managed topology."""

from typing import Annotated

from capelin.api import Unstructured
from capelin.runtime.catalog import Hook
from capelin.runtime.messages import Bytes, Go, Part, RawExtension, Request, Response
from capelin.runtime.v1alpha1.common import API_VERSION, CLUSTER_API, PatchType, Variable

GO_PACKAGE = "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"

_TAG = "Topology Mutation Hook"


class HolderReference(Part):
    """The object that uses a template, and its field with the reference."""

    api_version: str
    kind: str
    namespace: str
    name: str
    field_path: str


class GeneratePatchesRequestItem(Part):
    """A template that can be changed."""

    uid: str
    """Identifies the template within one request. It changes with every request."""
    holder_reference: HolderReference
    object: RawExtension
    variables: list[Variable] = []
    """Variables for this template, which override the request's own."""


class GeneratePatchesRequest(Request):
    """All templates of a cluster."""

    variables: list[Variable] = []
    items: list[GeneratePatchesRequestItem]


class GeneratePatchesResponseItem(Part):
    """A change to one template."""

    uid: str
    patch_type: PatchType
    patch: Bytes


class GeneratePatchesResponse(Response):
    """Changes of templates. Others stay as they are."""

    items: list[GeneratePatchesResponseItem] = []


@CLUSTER_API.hook(API_VERSION, tag=_TAG, summary="Changes templates", pure=True)
class GeneratePatches(Hook[GeneratePatchesRequest, GeneratePatchesResponse]):
    """Called whenever a topology is computed, dry runs included, before anything is written.

    A different response to the same request rolls out every machine of the templates.
    """


class ValidateTopologyRequestItem(Part):
    """A template after all patches."""

    holder_reference: HolderReference
    object: RawExtension
    variables: list[Variable] = []
    """Variables for this template, which override the request's own."""


class ValidateTopologyRequest(Request):
    """All templates of a cluster after all patches."""

    variables: list[Variable] = []
    items: list[ValidateTopologyRequestItem]


class ValidateTopologyResponse(Response):
    """Whether the templates may be used."""


@CLUSTER_API.hook(API_VERSION, tag=_TAG, summary="Checks templates after all patches", pure=True)
class ValidateTopology(Hook[ValidateTopologyRequest, ValidateTopologyResponse]):
    """Called whenever a topology was computed, dry runs included, before anything is written."""


class DiscoverVariablesRequest(Request):
    """Requests the variables."""


class DiscoverVariablesResponse(Response):
    """Variables that users of the ClusterClass can set for this extension's patches."""

    variables: list[
        Annotated[Unstructured, Go("sigs.k8s.io/cluster-api/api/core/v1beta2.ClusterClassVariable")]
    ] = []


@CLUSTER_API.hook(API_VERSION, tag=_TAG, summary="Describes variables", pure=True)
class DiscoverVariables(Hook[DiscoverVariablesRequest, DiscoverVariablesResponse]):
    """Called when core reconciles a ClusterClass. Core caches the response for some minutes."""
