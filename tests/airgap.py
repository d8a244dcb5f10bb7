"""Installs a release without a network: `python -m tests.airgap dist`. Needs root.

It runs in a network namespace that has only loopback and no route. A registry on loopback serves
the bundle: the images of Cluster API's managers, the charts, and the images of the providers. Each
provider runs like in its Deployment: same user, read-only root file system and service account.
Then the providers create a cluster of simulated machines.
"""

import argparse
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

REGISTRY = "127.0.0.1:5000"
PLACE = f"{REGISTRY}/capelin"
NAMESPACE = "capelin-system"
TOKENS = "var/run/secrets/kubernetes.io/serviceaccount"
USER = 65532
PATIENCE = 900.0
CONSOLE = Console(highlight=False, soft_wrap=True)
MANAGERS = ("cluster-api-controller", "kubeadm-bootstrap-controller")
# Binaries that the processes backend of the control plane provider needs on its host.
KUBERNETES = "v1.36.3"
"""The version of control planes. The isolated program cannot import the catalog."""
HOSTED = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def run(*command: str | Path, **options: Any) -> str:
    """Run a program and return its output."""
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True, **options)
    return done.stdout.strip()


def until(what: str, condition: Callable[[], object]) -> None:
    started = time.monotonic()
    while True:
        with suppress(subprocess.CalledProcessError, OSError):
            if condition():
                CONSOLE.print(f"{time.monotonic() - started:6.1f} s until {what}")
                return
        if time.monotonic() - started > PATIENCE:
            raise TimeoutError(f"not in time: {what}")
        time.sleep(0.5)


def check_no_route() -> None:
    """Only loopback is reachable."""
    run("ip", "link", "set", "lo", "up")
    routes = run("ip", "route", "show", "table", "main")
    assert not routes, f"unexpected routes: {routes}"
    with socket.socket() as outside:
        code = outside.connect_ex(("192.0.2.1", 443))
    assert code == errno.ENETUNREACH, os.strerror(code)
    CONSOLE.print("no route: 192.0.2.1 is unreachable")


def unpack(crane: Path, image: str, root: Path) -> None:
    root.mkdir(parents=True)
    export = subprocess.Popen([crane, "export", image, "-"], stdout=subprocess.PIPE)
    run("tar", "-x", "-C", root, stdin=export.stdout)
    assert export.wait() == 0


def running_programs() -> Iterator[Path]:
    for link in Path("/proc").glob("[0-9]*/exe"):
        # A process may exit during the scan, and a kernel thread has no executable.
        with suppress(OSError):
            yield link.readlink()


class Pod:
    """A Deployment's container: a process with the root file system of its image."""

    def __init__(self, deployment: dict[str, Any], root: Path, crane: Path) -> None:
        spec = deployment["spec"]["template"]["spec"]
        self.account = spec["serviceAccountName"]
        (self.container,) = spec["containers"]
        self.name = deployment["metadata"]["name"]
        self.root = root
        self.config = json.loads(run(crane, "config", self.container["image"]))["config"]
        unpack(crane, self.container["image"], root)

    def mount(self, programs: Path, token: str, ca: bytes) -> None:
        """Make the root read-only, with the volumes of its Deployment and /dev and /proc."""
        volumes = [mount["mountPath"] for mount in self.container["volumeMounts"]]
        folders = ["dev", "proc", TOKENS, "programs", *(path.strip("/") for path in volumes)]
        for folder in folders:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        secrets = self.root / TOKENS
        for name, content in (
            ("token", token.encode()),
            ("ca.crt", ca),
            ("namespace", NAMESPACE.encode()),
        ):
            (secrets / name).write_bytes(content)
        run("mount", "--bind", self.root, self.root)
        run("mount", "-o", "remount,bind,ro", self.root)
        run("mount", "-t", "tmpfs", "tmpfs", self.root / "dev")
        for device in ("null", "random", "urandom", "zero"):
            (self.root / "dev" / device).touch()
            run("mount", "--bind", f"/dev/{device}", self.root / "dev" / device)
        run("mount", "-t", "proc", "proc", self.root / "proc")
        run("mount", "--bind", programs, self.root / "programs")
        run("mount", "-o", "remount,bind,ro", self.root / "programs")
        for path in volumes:
            options = f"size=512m,mode=0700,uid={USER},gid={USER}"
            run("mount", "-t", "tmpfs", "-o", options, "tmpfs", self.root / path.strip("/"))

    def start(self, server: tuple[str, int], log: Path) -> subprocess.Popen[bytes]:
        """Start it like the kubelet: entry point, user and environment of the image."""
        assert self.config["User"] == f"{USER}:{USER}"
        environment = dict(variable.split("=", 1) for variable in self.config["Env"])
        environment |= {v["name"]: v["value"] for v in self.container.get("env", ())}
        environment |= {
            "KUBERNETES_SERVICE_HOST": server[0],
            "KUBERNETES_SERVICE_PORT": str(server[1]),
        }
        environment.setdefault("CAPELIN_BINARIES", "/programs")
        command = [
            *("setpriv", "--no-new-privs", "chroot", f"--userspec={USER}:{USER}", "--groups="),
            *(str(self.root), *self.config["Entrypoint"], *self.container["args"]),
        ]
        with log.open("wb") as output:
            return subprocess.Popen(
                command,
                env=environment | {"PATH": os.environ["PATH"]},
                stdout=output,
                stderr=output,
            )


class Installation:
    """Steps of the installation in an existing folder and network namespace."""

    def __init__(
        self, dist: Path, folder: Path, programs: dict[str, Path], stack: ExitStack
    ) -> None:
        self.dist, self.folder, self.programs, self.stack = dist, folder, programs, stack
        self.kubeconfig = folder / "state" / "capelin" / "airgap" / "kubeconfig"
        self.environment = {
            **os.environ,
            "XDG_STATE_HOME": str(folder / "state"),
            "KUBECONFIG": str(self.kubeconfig),
            "HELM_CACHE_HOME": str(folder / "helm"),
            "CLUSTERCTL_DISABLE_VERSIONCHECK": "true",
        }

    def kubectl(self, *arguments: str, **options: Any) -> str:
        return run(self.programs["kubectl"], *arguments, env=self.environment, **options)

    def serve(self) -> None:
        """Start a registry on loopback and mirror the bundle to it."""
        command = [self.programs["crane"], "registry", "serve", f"--address={REGISTRY}"]
        log = self.stack.enter_context((self.folder / "registry.log").open("wb"))
        registry = subprocess.Popen(command, stdout=log, stderr=log)
        self.stack.callback(registry.terminate)
        until(
            "the registry answers", lambda: run(self.programs["crane"], "catalog", REGISTRY) == ""
        )
        (bundle,) = self.dist.glob("*-bundle.tar")
        CONSOLE.print(run(sys.executable, "-m", "capelin_cli", "mirror", bundle, PLACE))

    def pull_managers(self) -> Path:
        """Extract the binaries of Cluster API's managers from their images in the registry."""
        folder = self.folder / "managers"
        folder.mkdir()
        for name in MANAGERS:
            repository = f"{PLACE}/cluster-api/{name}"
            (tag,) = run(self.programs["crane"], "ls", repository).split()
            root = self.folder / "images" / name
            unpack(self.programs["crane"], f"{repository}:{tag}", root)
            (root / "manager").rename(folder / name)
        return folder

    def bring_up(self) -> None:
        """Start Cluster API without the providers of Capelin."""
        managers = self.pull_managers()
        self.environment["CAPELIN_BINARIES"] = str(managers)
        python = self.folder / "venv" / "bin" / "python"
        code = (
            "import asyncio, sys\n"
            "from capelin_embedded.management import UpRequest, bring_up, environment_named\n"
            "request = UpRequest(providers=('kubeadm-bootstrap',))\n"
            "asyncio.run(bring_up(environment_named('airgap'), request))\n"
        )
        down = (
            "import asyncio\n"
            "from capelin_embedded.management import environment_named, remove_environment\n"
            "asyncio.run(remove_environment(environment_named('airgap')))\n"
        )
        self.stack.callback(run, python, "-c", down, env=self.environment)
        run(python, "-c", code, env=self.environment)
        CONSOLE.print(self.kubectl("get", "--raw=/version"))
        assert {managers / name for name in MANAGERS} <= {*running_programs()}

    def install(self) -> list[dict[str, Any]]:
        """Install the charts from the registry and return the Deployments."""
        (chart,) = (
            name for name in run(self.programs["crane"], "ls", f"{PLACE}/charts/capelin").split()
        )
        values = {
            name: {
                "image": {"repository": f"{PLACE}/{name}"},
                "extraArgs": [
                    f"--health-address=127.0.0.1:{9440 + number}",
                    "--metrics-address=0",
                    *more,
                ],
            }
            for number, (name, more) in enumerate(
                {
                    "capelin-control-plane": ["--backends=processes"],
                    "capelin-machine-pool": [],
                }.items()
            )
        }
        file = self.folder / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        run(
            *(self.programs["helm"], "install", "capelin", f"oci://{PLACE}/charts/capelin"),
            *(f"--version={chart}", "--plain-http", f"--values={file}"),
            *(f"--namespace={NAMESPACE}", "--create-namespace"),
            env=self.environment,
        )
        CONSOLE.print(self.kubectl("get", "deployments,crds", "-n", NAMESPACE, "-o", "name"))
        deployments = self.kubectl("get", "deployments", "-n", NAMESPACE, "-o", "json")
        return json.loads(deployments)["items"]

    def start(self, deployment: dict[str, Any]) -> None:
        """Pull a manager's image from the registry and run it like in its Deployment."""
        name = deployment["metadata"]["name"]
        pod = Pod(deployment, self.folder / name, self.programs["crane"])
        token = self.kubectl("create", "token", pod.account, "-n", NAMESPACE, "--duration=2h")
        config = yaml.safe_load(self.kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        host, _, port = cluster["server"].removeprefix("https://").partition(":")
        ca = run("base64", "-d", input=cluster["certificate-authority-data"])
        shared = self.folder / "programs"
        pod.mount(shared, token, ca.encode())
        process = pod.start((host, int(port)), self.folder / f"{name}.log")
        self.stack.callback(process.wait)
        self.stack.callback(process.terminate)
        address = next(
            argument.partition("=")[2]
            for argument in reversed(pod.container["args"])
            if argument.startswith("--health-address=")
        )
        until(f"{name} is ready", lambda: run("curl", "-fs", f"http://{address}/readyz"))

    def make_cluster(self) -> None:
        """Create a cluster of simulated machines from the release's ClusterClass and template."""
        self.kubectl("apply", "-f", str(self.dist / "clusterclass-capelin.yaml"))
        text = (self.dist / "cluster-template.yaml").read_text()
        variables = {
            "CLUSTER_NAME": "quiet",
            "NAMESPACE": "default",
            "KUBERNETES_VERSION": KUBERNETES,
            "CAPELIN_BACKEND": "Processes",
            "WORKER_MACHINE_COUNT": "3",
        }
        rendered = run(
            *(self.programs["clusterctl"], "generate", "yaml", "--from", "-"),
            input=text,
            env={**self.environment, **variables},
        )
        # Processes of a control plane outlive the provider, so the cluster must be deleted.
        delete = ("delete", "cluster", "quiet", "--ignore-not-found", "--timeout=180s")
        self.stack.callback(self.kubectl, *delete)
        self.kubectl("apply", "-f", "-", input=rendered)
        path = "jsonpath={.status.conditions[?(@.type=='Available')].status}"
        until(
            "the cluster is Available",
            lambda: self.kubectl("get", "cluster", "quiet", "-o", path) == "True",
        )
        pool = "jsonpath={.items[0].status.readyReplicas}"
        until(
            "three machines are ready",
            lambda: self.kubectl("get", "machinepools", "-o", pool) == "3",
        )
        CONSOLE.print(self.kubectl("get", "cluster,machinepool,machine"))


def inside(dist: Path, folder: Path, programs: dict[str, Path]) -> None:
    """Run all steps inside the network namespace."""
    check_no_route()
    with ExitStack() as stack:
        installation = Installation(dist, folder, programs, stack)
        installation.serve()
        installation.bring_up()
        for deployment in installation.install():
            installation.start(deployment)
        installation.make_cluster()
    CONSOLE.print("installed without a network")


def install_library(dist: Path, venv: Path) -> None:
    """Install only the release's wheels of the library and of Kubernetes as processes."""
    run("uv", "venv", "--quiet", f"--python={sys.executable}", venv)
    packages: list[str] = []
    for name in ("capelin-core[controller]", "capelin-embedded"):
        prefix = name.partition("[")[0].replace("-", "_")
        (wheel,) = (dist / "python").glob(f"{prefix}-*.whl")
        packages.append(f"{name} @ {wheel.absolute().as_uri()}")
    run("uv", "pip", "install", "--quiet", f"--python={venv}/bin/python", *packages)


def outside(dist: Path) -> int:
    """Download the binaries, then run the steps in a new network and mount namespace."""
    import asyncio  # noqa: PLC0415

    from capelin_cli.binaries import CRANE  # noqa: PLC0415
    from capelin_embedded.binaries import Binaries  # noqa: PLC0415
    from capelin_release.tools import HELM  # noqa: PLC0415

    names = [CRANE, HELM, "kubectl", "clusterctl", *(f"{name}@{KUBERNETES}" for name in HOSTED[1:])]
    binaries = asyncio.run(Binaries().fetch([*names, "etcd"]))
    programs = {name.partition("@")[0]: str(binary.path) for name, binary in binaries.items()}
    folder = Path(tempfile.mkdtemp(prefix="airgap-"))
    shared = folder / "programs"
    shared.mkdir()
    folder.chmod(0o755)
    for name in HOSTED:
        shutil.copy(programs[name], shared / name)
    install_library(dist, folder / "venv")
    command: Sequence[str | Path] = [
        *("unshare", "--net", "--mount", sys.executable, "-m", "tests.airgap"),
        *(dist.absolute(), "--inside", folder, "--programs", json.dumps(programs)),
    ]
    done = subprocess.run(command, check=False)
    if done.returncode == 0:
        shutil.rmtree(folder)
    else:
        CONSOLE.print(f"logs: {folder}")
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.airgap", description=__doc__)
    parser.add_argument("dist", type=Path, help="the folder of a release")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--programs", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is None:
        return outside(options.dist)
    programs = {name: Path(path) for name, path in options.programs.items()}
    inside(options.dist, options.inside, programs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
