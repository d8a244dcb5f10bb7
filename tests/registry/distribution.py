"""A real OCI registry, and the real clients that push to it, built from their pinned Go modules."""

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml
from capelin.pki import issue, new_ca
from capelin.testing.waiting import until
from capelin_embedded.addresses import free_port, is_listening
from capelin_embedded.binaries import Binaries, Component, Project
from capelin_release.tools import HELM

_MODULES = Path(__file__).parent / "modules"
DISTRIBUTION = Component(
    "registry",
    Project("distribution", "Distribution", sources={}, stamps={}, modules=_MODULES),
    "github.com/distribution/distribution/v3/cmd/registry",
)
ORAS = Component(
    "oras",
    Project("oras", "ORAS", sources={}, stamps={}, modules=_MODULES),
    "oras.land/oras/cmd/oras",
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Registry:
    """A running registry."""

    folder: Path
    host: str
    """Its address and port."""
    ca: str
    """The certificate of its CA."""

    @property
    def endpoint(self) -> str:
        return f"https://{self.host}"

    async def push_files(self, name: str, *files: Path) -> str:
        """Push files or folders of one folder with ORAS. Returns the reference."""
        paths = [file.name for file in files]
        options = ["--ca-file", "ca.crt", "--format=json"]
        for path in files:
            if path.parent != self.folder:
                raise ValueError(f"{path} is not in {self.folder}")
        command = ("push", *options, f"{self.host}/{name}:latest", *paths)
        output = await run(self.folder, await Binaries().path(ORAS), *command)
        return f"{self.host}/{name}@{json.loads(output)['digest']}"

    async def push_chart(self, chart: Path) -> str:
        """Package a chart and push it with Helm. Returns the reference."""
        helm = await Binaries().path(HELM)
        packed = await run(self.folder, helm, "package", str(chart))
        archive = packed.strip().rpartition(" ")[2]
        target = f"oci://{self.host}/charts"
        pushed = await run(self.folder, helm, "push", archive, target, "--ca-file", "ca.crt")
        digest = _DIGEST.search(pushed)
        if digest is None:
            raise ValueError(pushed)
        return f"{self.host}/charts/{chart.name}@{digest[0]}"


@asynccontextmanager
async def distribution(folder: Path, host: str = "127.0.0.1") -> AsyncGenerator[Registry]:
    """Run a registry with TLS until the end of the context."""
    program = await Binaries().path(DISTRIBUTION)
    port = free_port(host)
    ca = _write_certificates(folder, host)
    settings = {
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {
            "addr": f"{host}:{port}",
            "tls": {"certificate": str(folder / "tls.crt"), "key": str(folder / "tls.key")},
        },
    }
    config = folder / "config.yml"
    config.write_text(yaml.safe_dump(settings))
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program, "serve", config, stdout=log, stderr=log
        )
    try:
        await until(lambda: is_listening(host, port))
        yield Registry(folder, f"{host}:{port}", ca)
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def _write_certificates(folder: Path, host: str) -> str:
    """Write the certificate of the server. Returns that of its CA."""
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    ca = new_ca("registry", now=now)
    serving = issue(ca, common_name="registry", usages=["server"], addresses=[host], now=now)
    (folder / "ca.crt").write_bytes(ca.certificate_pem)
    (folder / "tls.crt").write_bytes(serving.certificate_pem)
    (folder / "tls.key").write_bytes(serving.private_key_pem)
    return ca.certificate_pem.decode()


async def run(folder: Path, program: Path, *arguments: str) -> str:
    """Output of a client, which keeps its files in a folder."""
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{program.name} {arguments[0]}: {output.decode()[-2000:]}")
    return output.decode()
