"""What a control plane keeps in its workload cluster, so that kubeadm's machines can join it."""

from capelin_control_plane.workload.addons import addons
from capelin_control_plane.workload.facts import Addon, Facts
from capelin_control_plane.workload.kubeadm import join_objects
from capelin_control_plane.workload.service import service_objects

__all__ = ["Addon", "Facts", "addons", "join_objects", "service_objects"]
