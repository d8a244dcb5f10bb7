"""Environments on this machine: connections, kubeconfigs, programs, logs, start and removal."""
