"""A Runtime Extension that keeps protected Clusters from being deleted."""

from capelin.api import Model
from capelin.runtime import Call, Extension, Response, proceed, retry_after
from capelin.runtime.server import serve
from capelin.runtime.v1alpha1 import BeforeClusterDelete

ext = Extension("keep")


class Settings(Model):
    """Settings of the ExtensionConfig."""

    annotation: str = "example.com/keep"


@ext.handler(BeforeClusterDelete, settings=Settings)
async def not_protected(call: Call[BeforeClusterDelete, Settings]) -> Response:
    """Block the deletion while the Cluster has the annotation, whose value is the reason."""
    reason = call.request.cluster.metadata.annotations.get(call.settings.annotation)
    if reason is not None:
        return retry_after(5, f"the cluster is protected: {reason}")
    return proceed()


if __name__ == "__main__":
    serve(ext)
