"""An environment by name: its folder, its settings, and the lock for changing it."""

import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError

from capelin.api import Model
from capelin.embedded.file_locks import open_lock, take_lock
from capelin.embedded.folders import state_folder
from capelin.embedded.processes import private_folder, write_private
from capelin.errors import BusyError, InvalidInputError, UserError

DEFAULT_NAME: Final = "default"

_LOCK: Final = "lock"
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?")


Target = Literal["process", "existing"]
"""Where the management cluster's API server is: among our own processes, or there already."""


class ExistingServer(Model):
    """An existing API server that an environment uses."""

    cluster: str
    """The uid of its namespace kube-system, which no two clusters share."""
    version: str
    """As in `v1.34.4`."""
    address: str
    """Where, on this machine, it reaches our webhooks."""
    mark: str
    """The value of the label that is on all that was applied to it."""


class Settings(Model):
    """Settings of an environment, and the ports that were chosen for it."""

    kubernetes_version: str
    """Of the clusters that are made in it, and of the API server where that is our own."""
    existing: ExistingServer | None = None
    """The API server, where it is not our own."""
    providers: list[str] = []
    """The names given to `--with`."""
    durable: bool = True
    """False may lose the last writes when the machine goes down, and is faster: for tests."""
    capelin: str = ""
    """The version of Capelin that last brought it up."""
    ports: dict[str, Annotated[int, Field(gt=0, lt=65536)]] = {}
    """A port for each that listens: the component's name, and what it listens for."""

    @property
    def target(self) -> Target:
        return "process" if self.existing is None else "existing"

    @property
    def server_version(self) -> str:
        return self.kubernetes_version if self.existing is None else self.existing.version

    def ports_of(self, label: str) -> list[int]:
        return [port for name, port in self.ports.items() if name.startswith(f"{label}/")]


@dataclass(frozen=True, slots=True)
class Environment:
    """The files of an environment, except cached binaries."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def settings_file(self) -> Path:
        """Its settings: everything can be started from them and the data."""
        return self.folder / "environment.json"

    @property
    def status_file(self) -> Path:
        return self.folder / "status.json"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def context(self) -> str:
        return f"capelin-{self.name}"

    @property
    def credentials(self) -> Path:
        """A folder for each process: its kubeconfig, its token, its serving certificate."""
        return self.folder / "credentials"

    @property
    def supervisor(self) -> Path:
        """The supervisor's own process record and log."""
        return self.folder / "supervisor"

    @property
    def authority(self) -> Path:
        """The certificate of the CA that signed them all."""
        return self.credentials / "ca.crt"

    @property
    def processes(self) -> Path:
        """Records and logs of its processes."""
        return self.folder / "processes"

    @property
    def workloads(self) -> Path:
        """State of the processes that providers run on this machine."""
        return self.folder / "workloads"

    @property
    def exists(self) -> bool:
        """Whether it was started and not taken down since."""
        return self.settings_file.exists()

    def settings(self) -> Settings | None:
        """Its settings; None if it was never started.

        Raises:
            UserError: if the file cannot be read.
        """
        try:
            return Settings.read_json(self.settings_file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise UserError(
                f"The settings of environment {self.name} cannot be read.",
                reason=f"{self.settings_file} is not what Capelin wrote there "
                f"({error.error_count()} invalid values).",
                hint=f"Remove it: capelin down -e {self.name}, then start it again.",
            ) from error

    def write_settings(self, settings: Settings) -> None:
        """Replace the settings atomically."""
        write_private(self.settings_file, settings.model_dump_json(indent=2).encode())

    def make_folders(self) -> None:
        """Create missing folders, private to the owner."""
        for folder in (self.folder, self.credentials, self.supervisor, self.workloads):
            private_folder(folder)

    @contextmanager
    def locked(self, verb: str) -> Generator[None]:
        """Hold the environment, so that no other command starts or removes it meanwhile.

        The kernel drops the lock however the holder ends. Removes a folder that remained empty.

        Raises:
            BusyError: at once, if another command holds it.
        """
        lock = self.folder / _LOCK
        descriptor = _open_locked(lock)
        if descriptor is None:
            raise BusyError(
                f"Environment {self.name} is being changed by another command.",
                reason=f"capelin {_verb_in(lock)} is at work on it.",
                hint="Wait until it is done, or watch it with "
                f"capelin status -e {self.name} --watch.",
            )
        try:
            os.truncate(descriptor, 0)
            os.write(descriptor, verb.encode())
            yield
        finally:
            self._remove_if_empty()
            os.close(descriptor)

    def _remove_if_empty(self) -> None:
        if [entry.name for entry in self.folder.glob("*")] == [_LOCK]:
            (self.folder / _LOCK).unlink()
            # Another command may hold a lock of its own in it already.
            with suppress(OSError):
                self.folder.rmdir()


def _verb_in(lock: Path) -> str:
    # The command may be done by now, and have removed the folder.
    with suppress(FileNotFoundError):
        return lock.read_text(encoding="utf-8").strip() or "command"
    return "command"


def _open_locked(path: Path) -> int | None:
    while True:
        private_folder(path.parent)
        try:
            descriptor = open_lock(path)
        except FileNotFoundError:
            continue
        if not take_lock(descriptor):
            os.close(descriptor)
            return None
        # Whoever held it before may have removed the folder: then this lock is on nothing.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


def environment_named(name: str, environ: Mapping[str, str] | None = None) -> Environment:
    """The environment of a name.

    Raises:
        InvalidInputError: for a name that cannot be one.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"{name!r} cannot be the name of an environment.",
            reason="A name has 1 to 30 lower-case letters, digits and hyphens, "
            "and begins with a letter.",
            hint="Choose another environment with -e.",
        )
    return Environment(state_folder(environ) / name)


def all_environments(environ: Mapping[str, str] | None = None) -> list[Environment]:
    """All environments, by name."""
    folder = state_folder(environ)
    found = folder.iterdir() if folder.is_dir() else ()
    environments = (Environment(folder) for folder in sorted(found) if _NAME.fullmatch(folder.name))
    return [environment for environment in environments if environment.folder.is_dir()]


def existing_server_of(environment: Environment) -> ExistingServer | None:
    """The existing API server that an environment uses, if it has none of its own."""
    try:
        settings = environment.settings()
    except UserError:
        # An environment that cannot be read has to be removable all the same.
        return None
    return None if settings is None else settings.existing
