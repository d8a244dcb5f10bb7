"""An environment by name: its folder, its settings, and the lock for changing it."""

import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from capelin.api import Model
from capelin.errors import BusyError, InvalidInputError, UserError
from pydantic import Field, ValidationError

from capelin_embedded.file_locks import open_lock, take_lock
from capelin_embedded.folders import state_folder
from capelin_embedded.processes import private_folder, write_private

DEFAULT_NAME: Final = "default"
BACKUP_FOLDER: Final = "CAPELIN_BACKUP_FOLDER"
"""The variable with the folder for backups."""

_LOCK: Final = "lock"
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?")


Target = Literal["process", "existing"]
"""The API server of the management cluster: one of our own processes, or an existing one."""


class ExistingServer(Model):
    """An existing API server that an environment uses."""

    cluster: str
    """The UID of its namespace kube-system, which no two clusters share."""
    version: str
    """For example `v1.36.3`."""
    address: str
    """The address of this machine at which it reaches our webhooks."""
    mark: str
    """The value of the label on all objects that we applied to it."""


class Settings(Model):
    """Settings of an environment, and its ports."""

    kubernetes_version: str
    """The version of its clusters, and of the API server if it is our own."""
    existing: ExistingServer | None = None
    """The API server, if it is not our own."""
    providers: list[str] = []
    """The names from `--with`."""
    core_only: bool = False
    """Whether it runs Cluster API's core without providers of installed packages and without the
    garbage collector, which would remove objects that come back with their UIDs."""
    durable: bool = True
    """False may lose the last writes when the machine crashes, and is faster: for tests."""
    backup_folder: Path | None = None
    """The folder for backups, for providers that take some."""
    variables: dict[str, str] = {}
    """Environment variables that our managers have in addition to those they inherit."""
    capelin: str = ""
    """The version of Capelin of the last `up`."""
    prefetch: bool = False
    """Whether the programs of the next Kubernetes version are built in the background."""
    ports: dict[str, Annotated[int, Field(gt=0, lt=65536)]] = {}
    """A port for each listener, by the component's name and the purpose of the port."""

    @property
    def target(self) -> Target:
        return "process" if self.existing is None else "existing"

    @property
    def server_version(self) -> str:
        return self.kubernetes_version if self.existing is None else self.existing.version

    @property
    def manager_variables(self) -> dict[str, str]:
        """The environment variables by which our managers get the settings."""
        folder = self.backup_folder
        return self.variables | ({} if folder is None else {BACKUP_FOLDER: str(folder)})

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
        """Its settings: they and the data are enough to start everything."""
        return self.folder / "environment.json"

    @property
    def status_file(self) -> Path:
        return self.folder / "status.json"

    @property
    def installed_file(self) -> Path:
        """Identifies the objects that its API server has from the last complete start."""
        return self.folder / "installed"

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
        """Whether it was started and not removed since."""
        return self.settings_file.exists()

    def settings(self) -> Settings | None:
        """Its settings, or None if it was never started.

        Raises:
            UserError: The file is unreadable.
        """
        try:
            return Settings.read_json(self.settings_file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise UserError(
                f"The settings of environment {self.name} are unreadable.",
                reason=f"{self.settings_file} is not in Capelin's format "
                f"({error.error_count()} invalid values).",
                hint=f"Remove it: capelin down -e {self.name}, then start it again.",
            ) from error

    def write_settings(self, settings: Settings) -> None:
        """Replace the settings atomically. They survive a power failure."""
        content = settings.model_dump_json(indent=2).encode()
        write_private(self.settings_file, content, lasting=True)

    def make_folders(self) -> None:
        """Create missing folders, private to the owner."""
        for folder in (self.folder, self.credentials, self.supervisor, self.workloads):
            private_folder(folder)

    @contextmanager
    def locked(self, verb: str) -> Generator[None]:
        """Lock the environment, so that no other command starts or removes it meanwhile.

        The kernel releases the lock when the holder ends. Removes a folder that remained empty.

        Raises:
            BusyError: Another command has locked it. Raised at once.
        """
        lock = self.folder / _LOCK
        descriptor = _open_locked(lock)
        if descriptor is None:
            raise BusyError(
                f"Environment {self.name} is locked by another command.",
                reason=f"capelin {_verb_in(lock)} is changing it.",
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
            # Another command may already have its own lock in it.
            with suppress(OSError):
                self.folder.rmdir()


def _verb_in(lock: Path) -> str:
    # The command may have ended, and have removed the folder.
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
        # The previous holder may have removed the folder: then this lock is on nothing.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


def environment_named(name: str, environ: Mapping[str, str] | None = None) -> Environment:
    """The environment of a name.

    Raises:
        InvalidInputError: The name is invalid.
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
        # An environment with unreadable settings must be removable too.
        return None
    return None if settings is None else settings.existing
