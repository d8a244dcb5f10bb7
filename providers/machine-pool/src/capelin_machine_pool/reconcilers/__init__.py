"""The few lines that join what is wanted, what is seen and what is done: one module a kind."""

from capelin_machine_pool.reconcilers.clusters import Clusters
from capelin_machine_pool.reconcilers.machines import Machines
from capelin_machine_pool.reconcilers.pools import Pools
from capelin_machine_pool.reconcilers.templates import Templates

__all__ = ["Clusters", "Machines", "Pools", "Templates"]
