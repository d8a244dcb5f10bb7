"""Carries out the steps of bootstraps and clean-ups on a machine."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from capelin_machine_pool.bootstrap import scripts
from capelin_machine_pool.bootstrap.cloud_config import CloudConfig
from capelin_machine_pool.bootstrap.installation import (
    NOTHING,
    STATE_FOLDER,
    Archive,
    Installation,
)
from capelin_machine_pool.bootstrap.masking import mask, secrets_of
from capelin_machine_pool.bootstrap.plan import (
    BootstrapStep,
    CleanStep,
    HostState,
    JobState,
    UnreadableStateError,
    UpdateStep,
    next_bootstrap_step,
    next_clean_step,
    next_update_step,
    problems,
    read_host_state,
)
from capelin_machine_pool.bootstrap.transport import CommandResult, Transport, TransportError

_ANOTHER, _NODE, _BUSY = 65, 66, 75
_CHUNK: Final = 2 << 20
"""Bytes of an archive that are sent at once."""
_SHOWN: Final = 600
"""Characters of the output's end that a message contains."""
_DIFFERENCES: Final = 5
"""Differences that a message names."""


@dataclass(frozen=True, slots=True)
class MachineBootstrap:
    """A machine that has to become a node, or to be cleaned."""

    uid: str
    """The uid of the object that the machine belongs to. It survives no second object."""
    name: str
    """Its namespace and name, for people who look at the machine."""

    async def bootstrap(
        self,
        transport: Transport,
        config: CloudConfig,
        observed: HostState,
        installation: Installation = NOTHING,
    ) -> BootstrapStep:
        """Carry out the next step of the bootstrap and return it. It can run again at any time."""
        step = next_bootstrap_step(self.uid, observed)
        if step is BootstrapStep.MARK:
            script = scripts.mark_script(self.uid, self.name)
            result = await transport.run_script(script)
            if result.exit_code in {_ANOTHER, _NODE}:
                return BootstrapStep.DIRTY
            _check(result, "mark the machine")
        elif step is BootstrapStep.START:
            await send_archive(transport, installation.archive)
            script = scripts.bootstrap_script(self.uid, config, installation)
            await self._launch(transport, "bootstrap", script)
        return step

    async def update(
        self, transport: Transport, installation: Installation, observed: HostState
    ) -> UpdateStep:
        """Carry out the next step of an update and return it. It can run again at any time."""
        step = next_update_step(self.uid, installation.version, observed)
        if step is UpdateStep.START:
            await send_archive(transport, installation.archive)
            script = scripts.update_script(self.uid, installation)
            await self._launch(transport, "update", script)
        return step

    async def clean(
        self,
        transport: Transport,
        observed: HostState,
        commands: Sequence[str] = (),
        *,
        retry: bool = False,
    ) -> CleanStep:
        """Carry out the next step of the clean-up and return it. It can run again at any time."""
        step = next_clean_step(self.uid, observed, retry=retry)
        if step is CleanStep.START:
            if commands:
                content = scripts.clean_commands(commands).encode()
                await transport.write_file(f"{STATE_FOLDER}/clean/commands", content)
            await self._launch(transport, "clean", scripts.clean_script(self.uid))
        return step

    async def _launch(self, transport: Transport, job: str, script: str) -> None:
        path = scripts.script_path(job, script)
        await transport.write_file(path, script.encode())
        result = await transport.run_script(scripts.launch_script(self.uid, job, path))
        # Another controller has started it, or has cleaned the machine. The next look shows it.
        if result.exit_code != _ANOTHER and "already" not in result.message:
            _check(result, f"start capelin-{job}")


async def send_archive(transport: Transport, archive: Archive | None) -> None:
    """Copy an archive to a machine that does not have it. A cut connection continues later.

    Raises:
        TransportError: The machine does not answer, or cannot store the archive.
    """
    if archive is None:
        return
    size = -1
    while size < archive.size:
        script = scripts.receive_script(archive.sha256, size, archive.size)
        command = f"/bin/sh -c {shlex.quote(script)}"
        # The first request finds out how much of it the machine has.
        async with archive.part(max(size, 0), 0 if size < 0 else _CHUNK) as part:
            if size >= 0 and not part:
                message = f"cannot copy {archive.name}: the provider's file has changed"
                raise TransportError(message, "command")
            result = await transport.run(command, stdin=part, timeout_seconds=120)
        _check(result, f"copy {archive.name}")
        try:
            size = int(result.output)
        except ValueError:
            message = f"cannot copy {archive.name}: the machine's answer is not complete"
            raise TransportError(message, "command") from None


async def observe(transport: Transport) -> HostState:
    """The state of a machine.

    Raises:
        TransportError: It does not answer, or not as expected.
    """
    result = await transport.run_script(scripts.observe_script())
    try:
        return read_host_state(result.output)
    except UnreadableStateError as error:
        raise TransportError(f"{error}: {result.message}", "command") from None


async def take_baseline(transport: Transport, *, renew: bool) -> None:
    """Record the state of a machine before its first use, unless it is marked or a node.

    Raises:
        TransportError: The machine does not answer, or cannot record it.
    """
    _check(await transport.run_script(scripts.baseline_script(renew=renew)), "record the baseline")


def differences_message(observed: HostState) -> str:
    """The differences of a machine from its baseline, for a condition. Empty if it has none."""
    shown = "; ".join(observed.differences[:_DIFFERENCES])
    more = len(observed.differences) - _DIFFERENCES
    shown += f" and {more} more" if more > 0 else ""
    return mask(shown, frozenset())[:_SHOWN]


def bootstrap_message(step: BootstrapStep, observed: HostState, config: CloudConfig | None) -> str:
    """The reason of a bootstrap's state for a condition, without secrets.

    Without the bootstrap data, nothing shows which words are secret: the output is not shown.
    """
    code = observed.bootstrap.exit_code if observed.bootstrap else None
    messages = {
        BootstrapStep.DIRTY: "the host belongs to another machine, or is being cleaned",
        BootstrapStep.UNFIT: f"the host lacks the programs {', '.join(observed.missing)}",
        BootstrapStep.INTERRUPTED: "the bootstrap was killed, and is not repeated",
        BootstrapStep.FAILED: f"the bootstrap failed with exit code {code}",
        BootstrapStep.SUCCEEDED: "",
    }
    if step is BootstrapStep.DIRTY and observed.node_files and observed.marker is None:
        return f"the host is a node already: it has {', '.join(observed.node_files)}"
    if step is BootstrapStep.DIRTY and observed.differences:
        return f"the host is not as before its first use: {differences_message(observed)}"
    message = messages.get(step, "the bootstrap runs")
    if config is None or step not in {BootstrapStep.INTERRUPTED, BootstrapStep.FAILED}:
        return message
    return message + _end(observed.bootstrap, secrets_of(config))


def update_message(step: UpdateStep, observed: HostState, version: str) -> str:
    """The reason of an update's state for a condition."""
    code = observed.update.exit_code if observed.update else None
    messages = {
        UpdateStep.OTHER: "the host belongs to another machine, or is being cleaned",
        UpdateStep.INTERRUPTED: f"the update to {version} was killed, and is not repeated",
        UpdateStep.FAILED: f"the update to {version} failed with exit code {code}",
        UpdateStep.SUCCEEDED: "",
    }
    message = messages.get(step, f"the update to {version} runs")
    with_output = step in {UpdateStep.INTERRUPTED, UpdateStep.FAILED}
    return message + (_end(observed.update, frozenset()) if with_output else "")


def clean_message(observed: HostState) -> str:
    """The findings of a clean-up's verification, for a condition."""
    output = observed.clean.output if observed.clean else ""
    return mask("; ".join(problems(output)) or "the clean-up failed", frozenset())[:_SHOWN]


def _end(job: JobState | None, secrets: frozenset[str]) -> str:
    masked = mask(job.output if job else "", secrets).strip()
    shortened = masked if len(masked) <= _SHOWN else f"...{masked[-_SHOWN:]}"
    return f": {shortened}" if masked else ""


def _check(result: CommandResult, what: str) -> None:
    if result.exit_code == _BUSY:
        raise TransportError(f"cannot {what}: another process works on the machine", "command")
    if result.exit_code != 0:
        raise TransportError(f"cannot {what}: {result.message}", "command")
