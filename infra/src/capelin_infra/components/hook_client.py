"""The client certificate by which Cluster API's core calls the lifecycle extension.

The extension answers only core, because hooks decide about clusters. cert-manager issues the
certificate from an authority in core's namespace.
"""

from collections.abc import Sequence
from typing import Any, Final

import pulumi
from capelin.api import Unstructured
from capelin.api.core import Secret
from capelin.client import Client, Config

NAMESPACE: Final = "capi-system"
_NAME: Final = "runtime-extension-client"
_CA: Final = f"{_NAME}-ca"
_FOLDER: Final = f"/{_NAME}"
_CORE: Final = "capi-controller-manager"


def with_hook_client(objects: Sequence[Unstructured]) -> list[Unstructured]:
    """Cluster API's core with a client certificate for hooks, and the issuers of it."""
    found = [_presenting(obj) if _is_core(obj) else obj for obj in objects]
    return [*found, *_certificates()]


def hook_client_ca(
    kubeconfig: pulumi.Input[str], after: pulumi.CustomResource
) -> pulumi.Output[str]:
    """The CA of the certificate, once it exists: as soon as core runs, after this resource."""
    # As a resource that Pulumi only reads, the Secret would differ in each refresh.
    return pulumi.Output.all(kubeconfig, after.id).apply(lambda known: _read(str(known[0])))


async def _read(kubeconfig: str) -> str:
    async with Client(Config.from_kubeconfig(kubeconfig.encode())) as client:
        secret = await client.get(Secret, _NAME, NAMESPACE)
    return secret.data["ca.crt"].decode()


def hook_client_config_map(namespace: str, ca: pulumi.Input[str]) -> dict[str, Any]:
    """The ConfigMap with the CA, for which the pods of the extension wait."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _CA, "namespace": namespace},
        "data": {"ca.crt": ca},
    }


def _is_core(obj: Unstructured) -> bool:
    return obj["kind"] == "Deployment" and obj["metadata"]["name"] == _CORE


def _presenting(deployment: Unstructured) -> Unstructured:
    """The Deployment of core with the certificate."""
    template = deployment["spec"]["template"]
    pod = template["spec"]
    first, *others = pod["containers"]
    mount = {"name": _NAME, "mountPath": _FOLDER, "readOnly": True}
    flags = [
        f"--runtime-extension-client-cert-file={_FOLDER}/tls.crt",
        f"--runtime-extension-client-key-file={_FOLDER}/tls.key",
    ]
    first = {
        **first,
        "args": [*first.get("args", ()), *flags],
        "volumeMounts": [*first.get("volumeMounts", ()), mount],
    }
    volumes = [*pod.get("volumes", ()), {"name": _NAME, "secret": {"secretName": _NAME}}]
    pod = {**pod, "containers": [first, *others], "volumes": volumes}
    return {**deployment, "spec": {**deployment["spec"], "template": {**template, "spec": pod}}}


def _certificates() -> list[Unstructured]:
    key = {"privateKey": {"algorithm": "ECDSA", "size": 256}}
    authority = {"isCA": True, "commonName": _CA, "secretName": _CA, "duration": "87600h", **key}
    client = {"commonName": "cluster-api", "secretName": _NAME, "usages": ["client auth"], **key}
    return [
        _cert_manager("Issuer", f"{_NAME}-selfsigned", {"selfSigned": {}}),
        _cert_manager(
            "Certificate", _CA, {**authority, "issuerRef": {"name": f"{_NAME}-selfsigned"}}
        ),
        _cert_manager("Issuer", _CA, {"ca": {"secretName": _CA}}),
        _cert_manager("Certificate", _NAME, {**client, "issuerRef": {"name": _CA}}),
    ]


def _cert_manager(kind: str, name: str, spec: Unstructured) -> Unstructured:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "cert-manager.io/v1", "kind": kind, "metadata": metadata, "spec": spec}
