"""Operating system processes that outlive whoever started them, kept running and found again."""

from capelin.embedded.processes.command import Command, Declared, Limits, Liveness, Probe
from capelin.embedded.processes.decisions import Backoff, Phase
from capelin.embedded.processes.probes import alive, answering, listening
from capelin.embedded.processes.process import Exit, Process, kill_all
from capelin.embedded.processes.records import private_folder, write_private
from capelin.embedded.processes.supervisor import (
    AlreadySupervisedError,
    NotReadyError,
    State,
    Supervisor,
)

__all__ = [
    "AlreadySupervisedError",
    "Backoff",
    "Command",
    "Declared",
    "Exit",
    "Limits",
    "Liveness",
    "NotReadyError",
    "Phase",
    "Probe",
    "Process",
    "State",
    "Supervisor",
    "alive",
    "answering",
    "kill_all",
    "listening",
    "private_folder",
    "write_private",
]
