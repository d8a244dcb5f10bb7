"""The objects that kubeadm's machines need in the workload cluster to join it."""

from capelin_control_plane.workload.objects import workload_objects
from capelin_control_plane.workload.sync import RESYNC, WorkloadSync

__all__ = ["RESYNC", "WorkloadSync", "workload_objects"]
