"""The protocol between the engine and a machine: SSH, or the API of a container engine."""

import shlex
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Literal

FailureKind = Literal["unreachable", "host key", "login", "command"]
"""Whether a machine does not answer, has another host key, rejects the user, or answers and cannot
carry out a command."""

MAX_OUTPUT_BYTES: Final = 256 * 1024
_WRITE: Final = """\
set -e
umask 077
mkdir -p -- "$(dirname -- "$1")"
temporary=$(mktemp -- "$1.XXXXXX")
trap 'rm -f -- "$temporary"' EXIT
cat >"$temporary"
# The connection may have been cut.
[ "$(wc -c <"$temporary")" -eq "$4" ]
chown -- "$2" "$temporary"
chmod -- "$3" "$temporary"
sync
mv -- "$temporary" "$1"
"""


class TransportError(Exception):
    """A machine could not be reached, or a command on it failed. The command may have run."""

    def __init__(self, message: str, kind: FailureKind = "unreachable") -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The end of a command on a machine."""

    exit_code: int
    output: bytes = b""
    """Standard output, up to a limit."""
    errors: bytes = b""
    """Standard error, up to a limit."""

    @property
    def message(self) -> str:
        """The last line of its errors."""
        lines = self.errors.decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"exit code {self.exit_code}"


class Transport(ABC):
    """Runs commands as root on one machine."""

    @abstractmethod
    async def run(
        self,
        command: str,
        *,
        stdin: bytes = b"",
        timeout_seconds: float = 30,
        max_output: int = MAX_OUTPUT_BYTES,
    ) -> CommandResult:
        """Run a shell command as root and wait for its end.

        Other users of the machine can read the command. Secrets belong in `stdin`.

        Raises:
            TransportError: The connection, the time or the output prevents a result.
        """

    async def run_script(self, script: str, *, timeout_seconds: float = 60) -> CommandResult:
        """Run a shell script. If the connection is cut on the way, none of it runs."""
        # A shell runs the lines of its input one by one, but a group only as a whole.
        whole = f"{{\n{script}\n}}\n"
        return await self.run("/bin/sh -s", stdin=whole.encode(), timeout_seconds=timeout_seconds)

    async def write_file(
        self, path: str, content: bytes, *, mode: int = 0o600, owner: str = "root:root"
    ) -> None:
        """Write a file as a whole: after a failure, the old one remains."""
        words = shlex.join(["/bin/sh", "-c", _WRITE, "write", path, owner, f"{mode:04o}"])
        command = f"{words} {len(content)}"
        result = await self.run(command, stdin=content, timeout_seconds=120)
        if result.exit_code != 0:
            raise TransportError(f"cannot write {path}: {result.message}", "command")

    async def read_file(self, path: str, *, max_bytes: int = MAX_OUTPUT_BYTES) -> bytes:
        """Read a file, up to a number of bytes."""
        command = f"head -c {max_bytes} -- {shlex.quote(path)}"
        result = await self.run(command, max_output=max_bytes)
        if result.exit_code != 0:
            raise TransportError(f"cannot read {path}: {result.message}", "command")
        return result.output

    async def reboot(self) -> None:
        """Start a reboot. The machine answers again some time later."""
        # Later, so that the answer arrives first.
        script = "(sleep 1; systemctl reboot || reboot) </dev/null >/dev/null 2>&1 &"
        result = await self.run_script(script)
        if result.exit_code != 0:
            raise TransportError(f"cannot reboot: {result.message}", "command")
