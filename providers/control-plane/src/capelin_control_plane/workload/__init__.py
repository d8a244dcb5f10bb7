"""The objects that kubeadm's machines need in the workload cluster to join it."""

from capelin_control_plane.workload.objects import RESYNC, WorkloadSync, workload_objects

__all__ = ["RESYNC", "WorkloadSync", "workload_objects"]
