"""What a control plane keeps in its workload cluster, so that kubeadm's machines can join it."""

from capelin_control_plane.workload.objects import workload_objects
from capelin_control_plane.workload.sync import RESYNC, WorkloadSync

__all__ = ["RESYNC", "WorkloadSync", "workload_objects"]
