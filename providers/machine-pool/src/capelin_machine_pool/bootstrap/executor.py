"""Carries out the steps of bootstraps and clean-ups on a machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from capelin_machine_pool.bootstrap import scripts
from capelin_machine_pool.bootstrap.cloud_config import CloudConfig
from capelin_machine_pool.bootstrap.masking import mask, secrets_of
from capelin_machine_pool.bootstrap.plan import (
    BootstrapStep,
    CleanStep,
    HostState,
    UnreadableStateError,
    next_bootstrap_step,
    next_clean_step,
    problems,
    read_host_state,
)
from capelin_machine_pool.bootstrap.transport import CommandResult, Transport, TransportError

_ANOTHER, _NODE, _BUSY = 65, 66, 75
_SHOWN: Final = 600
"""Characters of the output's end that a message contains."""


@dataclass(frozen=True, slots=True)
class MachineBootstrap:
    """A machine that has to become a node, or to be cleaned."""

    uid: str
    """The uid of the object that the machine belongs to. It survives no second object."""
    name: str
    """Its namespace and name, for people who look at the machine."""

    async def bootstrap(
        self, transport: Transport, config: CloudConfig, observed: HostState
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
            await self._launch(transport, "bootstrap", scripts.bootstrap_script(self.uid, config))
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
                await transport.write_file(f"{scripts.STATE_FOLDER}/clean/commands", content)
            await self._launch(transport, "clean", scripts.clean_script(self.uid))
        return step

    async def _launch(self, transport: Transport, job: str, script: str) -> None:
        path = scripts.script_path(job, script)
        await transport.write_file(path, script.encode())
        result = await transport.run_script(scripts.launch_script(self.uid, job, path))
        # Another controller has started it, or has cleaned the machine. The next look shows it.
        if result.exit_code != _ANOTHER and "already" not in result.message:
            _check(result, f"start capelin-{job}")


async def observe(transport: Transport) -> HostState:
    """The state of a machine.

    Raises:
        TransportError: It does not answer, or not as expected.
    """
    result = await transport.run_script(scripts.observe_script())
    try:
        return read_host_state(result.output)
    except UnreadableStateError as error:
        raise TransportError(f"{error}: {result.message}") from None


def bootstrap_message(step: BootstrapStep, observed: HostState, config: CloudConfig) -> str:
    """The reason of a bootstrap's state for a condition, without secrets."""
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
    message = messages.get(step, "the bootstrap runs")
    with_output = step in {BootstrapStep.INTERRUPTED, BootstrapStep.FAILED}
    return message + (_end(observed, config) if with_output else "")


def clean_message(observed: HostState) -> str:
    """The findings of a clean-up's verification, for a condition."""
    output = observed.clean.output if observed.clean else ""
    return mask("; ".join(problems(output)) or "the clean-up failed", frozenset())[:_SHOWN]


def _end(observed: HostState, config: CloudConfig) -> str:
    output = observed.bootstrap.output if observed.bootstrap else ""
    masked = mask(output, secrets_of(config)).strip()
    shortened = masked if len(masked) <= _SHOWN else f"...{masked[-_SHOWN:]}"
    return f": {shortened}" if masked else ""


def _check(result: CommandResult, what: str) -> None:
    if result.exit_code == _BUSY:
        raise TransportError(f"cannot {what}: another process works on the machine")
    if result.exit_code != 0:
        raise TransportError(f"cannot {what}: {result.message}")
