"""Supervised processes that outlive the process that started them."""

from capelin_embedded.processes.probes import liveness_probe, readiness_probe, tcp_probe
from capelin_embedded.processes.proc import marked_processes
from capelin_embedded.processes.process import CAUSE_UNKNOWN, Exit, Process, kill_all
from capelin_embedded.processes.reconcile import Backoff, Phase
from capelin_embedded.processes.spec import Command, Limits, Liveness, Probe, ProcessSpec
from capelin_embedded.processes.state_dir import (
    exit_reason,
    private_folder,
    recorded_names,
    write_private,
)
from capelin_embedded.processes.supervisor import (
    AlreadySupervisedError,
    NotReadyError,
    ProcessState,
    Supervisor,
    SupervisorFailedError,
)

__all__ = [
    "CAUSE_UNKNOWN",
    "AlreadySupervisedError",
    "Backoff",
    "Command",
    "Exit",
    "Limits",
    "Liveness",
    "NotReadyError",
    "Phase",
    "Probe",
    "Process",
    "ProcessSpec",
    "ProcessState",
    "Supervisor",
    "SupervisorFailedError",
    "exit_reason",
    "kill_all",
    "liveness_probe",
    "marked_processes",
    "private_folder",
    "readiness_probe",
    "recorded_names",
    "tcp_probe",
    "write_private",
]
