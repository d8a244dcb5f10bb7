"""Types that several hooks of this version share."""

from typing import Annotated, Literal

from pydantic import Field, PrivateAttr

from capelin.api import Unstructured
from capelin.api.capi import Cluster
from capelin.runtime.catalog import Catalog
from capelin.runtime.messages import PLAIN_STRING, Bytes, Go, Json, Part, Request

GO_PACKAGE = "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
"""Cluster API's Go package of these types."""

API_VERSION = "hooks.runtime.cluster.x-k8s.io/v1alpha1"

CLUSTER_API = Catalog()
"""The hooks that Cluster API calls."""

PatchType = Annotated[Literal["JSONPatch", "JSONMergePatch"], PLAIN_STRING]


class Variable(Part):
    """A variable of the cluster's topology, or `builtin`."""

    name: str
    value: Json


class Patch(Part):
    """A change to one object."""

    patch_type: PatchType
    patch: Bytes


class ClusterRequest(Request):
    """A request about a cluster."""

    cluster_json: Annotated[
        Unstructured,
        Field(validation_alias="cluster", serialization_alias="cluster"),
        Go("sigs.k8s.io/cluster-api/api/core/v1beta2.Cluster"),
    ]
    """The Cluster as Cluster API sent it, without status."""

    _cluster: Cluster | None = PrivateAttr(default=None)

    @property
    def cluster(self) -> Cluster:
        """The Cluster, typed. Changing it has no effect on the caller."""
        if self._cluster is None:
            self._cluster = Cluster.read(self.cluster_json)
        return self._cluster
