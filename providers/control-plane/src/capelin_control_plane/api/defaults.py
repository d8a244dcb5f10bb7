"""Writes fields of a control plane's spec that the user left to the provider."""

from capelin.api import with_v
from capelin.client import Client

from capelin_control_plane.api import BackendName, CapelinControlPlane


async def complete_spec(client: Client, obj: CapelinControlPlane, backend: BackendName) -> None:
    """Write the version with its `v` and the backend, before anything is started."""
    if obj.spec.version != with_v(obj.spec.version):
        await _add_v(client, obj)
    # Owned also if it is set: a ClusterClass that had a backend may leave it out later.
    written = await client.apply_fields(obj, {"spec.backend": backend})
    obj.spec, obj.metadata = written.spec, written.metadata


async def _add_v(client: Client, control_plane: CapelinControlPlane) -> None:
    """Store the version with its `v`: the contract requires it.

    The provider then gives up the field, so that a server-side apply of the next version has no
    conflict with it.
    """
    meta = control_plane.metadata
    patch = {
        "metadata": {"resourceVersion": meta.resource_version},
        "spec": {"version": with_v(control_plane.spec.version)},
    }
    kind, name, namespace = type(control_plane), control_plane.name, control_plane.namespace
    written = await client.patch(kind, name, namespace, patch)
    others = [
        entry
        for entry in written.metadata.managed_fields or ()
        if (entry.get("manager"), entry.get("operation")) != (client.manager, "Update")
    ]
    patch = {
        "metadata": {
            "resourceVersion": written.metadata.resource_version,
            "managedFields": others,
        }
    }
    written = await client.patch(kind, name, namespace, patch)
    control_plane.spec, control_plane.metadata = written.spec, written.metadata
