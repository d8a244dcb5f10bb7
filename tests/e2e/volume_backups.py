"""Velero and CSI snapshots in workload clusters, without a registry.

The programs are built from their modules, and their manifests come from there. Only the CSI driver
is a small one of these tests: no other driver that runs here stores snapshots outside the cluster.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiohttp import web
from capelin.api import Unstructured
from capelin.yaml import read_all_yaml
from capelin_embedded.addresses import free_port
from capelin_embedded.binaries import Binaries

from tests.integration.repositories import run
from tests.s3.versitygw import BUCKET, KEY_ID, SECRET, S3Server

from .go_programs import GoModule
from .program_images import program_image

CSI_APP: Final = "csi-driver"
"""The label `app` of the driver's pod."""
DRIVER: Final = "files.capelin.test"
_SNAPSHOT_CLASS: Final = "retained"
"""The class that the page about backups names."""
# Not every module proxy has the patch releases that these two pin.
_CLI_RUNTIME: Final = "k8s.io/cli-runtime@v0.33.13"
_VELERO: Final = GoModule("github.com/vmware-tanzu/velero", "v1.18.3", newer=(_CLI_RUNTIME,))
_AWS_PLUGIN: Final = GoModule(
    "github.com/vmware-tanzu/velero-plugin-for-aws",
    "v1.14.3",
    newer=(_CLI_RUNTIME, f"{_VELERO.path}@{_VELERO.version}"),
)
_PROVISIONER: Final = GoModule("github.com/kubernetes-csi/external-provisioner/v6", "v6.3.0")
_SNAPSHOT_CLIENT: Final = GoModule(
    "github.com/kubernetes-csi/external-snapshotter/client/v8", "v8.6.0"
)
_SNAPSHOTTER: Final = GoModule(
    "github.com/kubernetes-csi/external-snapshotter/v8",
    "v8.6.0",
    replaced=(_SNAPSHOT_CLIENT.path,),
    newer=(f"{_SNAPSHOT_CLIENT.path}@{_SNAPSHOT_CLIENT.version}",),
)
_DRIVER_SOURCE: Final = Path(__file__).parent / "csi_driver" / "main.go"
_DRIVER_IMAGE: Final = "localhost/csi-driver:e2e"
_KUBELET: Final = "/var/lib/kubelet"
_NO_CLUSTER: Final = """
apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: none, context: {cluster: none, user: ""}}]
current-context: none
"""


async def velero_images() -> dict[str, bytes]:
    """The images of Velero and of its plugin for S3."""
    names = ("velero", "velero-helper", "velero-restore-helper")
    velero = await _VELERO.programs({name: f"./cmd/{name}" for name in names})
    plugin = "velero-plugin-for-aws"
    aws = await _AWS_PLUGIN.programs({plugin: f"./{plugin}", "cp-plugin": "./hack/cp-plugin"})
    copy = ["/bin/cp-plugin", f"/plugins/{plugin}", f"/target/{plugin}"]
    settings = ["PATH=/", "HOME=/tmp"]
    return {
        "velero": program_image(_velero_image(), velero, Env=settings, User="65532"),
        "aws": program_image(
            _plugin_image(),
            {"plugins/" + plugin: aws[plugin], "bin/cp-plugin": aws["cp-plugin"]},
            Entrypoint=copy,
            User="65532",
        ),
    }


async def csi_images() -> dict[str, bytes]:
    """The images of the sidecars of CSI drivers, and of the driver of these tests."""
    names = ("snapshot-controller", "csi-snapshotter")
    sidecars = {
        **await _SNAPSHOTTER.programs({name: f"./cmd/{name}" for name in names}),
        **await _PROVISIONER.programs({"csi-provisioner": "./cmd/csi-provisioner"}),
    }
    source = {"cmd/csi-driver/main.go": _DRIVER_SOURCE}
    driver = await _PROVISIONER.programs({"csi-driver": "./cmd/csi-driver"}, source)
    return {
        "driver": program_image(_DRIVER_IMAGE, driver, Entrypoint=["/csi-driver"]),
        **{
            name: program_image(_sidecar_image(name), {name: program}, Entrypoint=[f"/{name}"])
            for name, program in sidecars.items()
        },
    }


def _velero_image() -> str:
    return f"velero/velero:{_VELERO.version}"


def _plugin_image() -> str:
    return f"velero/velero-plugin-for-aws:{_AWS_PLUGIN.version}"


def _sidecar_image(name: str) -> str:
    module = _PROVISIONER if name == "csi-provisioner" else _SNAPSHOTTER
    return f"registry.k8s.io/sig-storage/{name}:{module.version}"


async def velero_manifests(server: S3Server, folder: Path) -> list[Unstructured]:
    """Velero as its own command installs it, with copies of files in an S3 bucket.

    It looks for backups of other clusters every 5 seconds.
    """
    ca, credentials, kubeconfig = (
        folder / name for name in ("s3-ca.crt", "credentials", "kubeconfig")
    )
    ca.write_text(server.ca)
    # The command needs a kubeconfig, but sends no request.
    kubeconfig.write_text(_NO_CLUSTER)
    credentials.write_text(
        f"[default]\naws_access_key_id={KEY_ID}\naws_secret_access_key={SECRET}\n"
    )
    programs = await _VELERO.programs({"velero": "./cmd/velero"})
    location = f"region=us-east-1,s3ForcePathStyle=true,s3Url={server.endpoint}"
    options = {
        "provider": "aws",
        "image": _velero_image(),
        "plugins": _plugin_image(),
        "bucket": BUCKET,
        "backup-location-config": location,
        "cacert": ca,
        "secret-file": credentials,
        "kubeconfig": kubeconfig,
        "use-volume-snapshots": "false",
    }
    flags = ["--use-node-agent", "--default-volumes-to-fs-backup", "--dry-run", "--output=yaml"]
    command = [programs["velero"], "install", *flags]
    text = await run([*command, *(f"--{name}={value}" for name, value in options.items())])
    (installed,) = read_all_yaml(text)
    manifests: list[Unstructured] = installed["items"]
    for manifest in manifests:
        if manifest["kind"] == "BackupStorageLocation":
            manifest["spec"]["backupSyncPeriod"] = "5s"
        if manifest["kind"] in ("Deployment", "DaemonSet"):
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            container["resources"] = {}
    return manifests


async def storage_manifests(archives: str) -> list[Unstructured]:
    """The default StorageClass, with volumes of the driver, and CSI snapshots.

    Args:
        archives: The URL of the archive server.
    """
    crds = (await _SNAPSHOT_CLIENT.folder()) / "config" / "crd"
    deploy = (await _SNAPSHOTTER.folder()) / "deploy" / "kubernetes"
    folders = (crds, deploy / "snapshot-controller", deploy / "csi-snapshotter")
    kubectl = await Binaries().path("kubectl")
    manifests = [
        manifest
        for folder in folders
        for manifest in read_all_yaml(await run([kubectl, "kustomize", folder]))
    ]
    for manifest in manifests:
        if manifest["kind"] in ("ServiceAccount", "Service", "StatefulSet"):
            manifest["metadata"].setdefault("namespace", "default")
        if manifest["kind"] == "Deployment":
            # It waits that long for its CRDs, which exist already.
            manifest["spec"].update(replicas=1, minReadySeconds=0)
            _use_our_images(manifest)
        if manifest["kind"] == "StatefulSet":
            _use_our_images(manifest)
            pod = manifest["spec"]["template"]
            pod["metadata"]["labels"]["app"] = CSI_APP
            _add_driver(pod["spec"], archives)
    return [*manifests, *_classes()]


def _use_our_images(workload: Unstructured) -> None:
    for container in workload["spec"]["template"]["spec"]["containers"]:
        container["image"] = _sidecar_image(container["name"])


def _add_driver(pod: Unstructured, archives: str) -> None:
    """Replace the driver of the example, its last container."""
    socket = f"{_KUBELET}/plugins/{DRIVER}"
    *sidecars, driver = pod["containers"]
    (socket_volume,) = pod["volumes"]
    pod["containers"] = [*sidecars, driver]
    socket_volume.pop("emptyDir")
    socket_volume["hostPath"] = {"path": socket, "type": "DirectoryOrCreate"}
    volumes = "/var/lib/csi-driver"
    pod["volumes"] += [
        {"name": "kubelet", "hostPath": {"path": _KUBELET}},
        {"name": "volumes", "hostPath": {"path": volumes, "type": "DirectoryOrCreate"}},
    ]
    driver.update(
        name="driver",
        image=_DRIVER_IMAGE,
        args=[
            f"--socket={socket}/csi.sock",
            f"--volumes={volumes}",
            f"--archives={archives}",
            "--node=$(NODE_NAME)",
        ],
        volumeMounts=[
            {"name": "kubelet", "mountPath": _KUBELET, "mountPropagation": "Bidirectional"},
            {"name": "volumes", "mountPath": volumes},
        ],
    )


def _classes() -> list[Unstructured]:
    return [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": DRIVER},
            "spec": {"attachRequired": False},
        },
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": "files",
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": DRIVER,
        },
        {
            "apiVersion": "snapshot.storage.k8s.io/v1",
            "kind": "VolumeSnapshotClass",
            "metadata": {"name": _SNAPSHOT_CLASS},
            "driver": DRIVER,
            "deletionPolicy": "Retain",
        },
    ]


@dataclass
class ArchiveServer:
    """A file server with the archives of snapshots, outside of the clusters."""

    url: str
    archives: dict[str, bytes] = field(default_factory=dict[str, bytes])
    is_full: bool = False

    async def respond(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if request.method == "PUT":
            if self.is_full:
                return web.Response(status=507)
            self.archives[name] = await request.read()
            return web.Response(status=201)
        if name not in self.archives:
            return web.Response(status=404)
        return web.Response(body=self.archives[name])


@asynccontextmanager
async def archive_server(host: str) -> AsyncGenerator[ArchiveServer]:
    """Run an archive server until the end of the context."""
    port = free_port(host)
    server = ArchiveServer(f"http://{host}:{port}")
    app = web.Application()
    app.router.add_route("*", "/{name}", server.respond)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield server
    finally:
        await runner.cleanup()
