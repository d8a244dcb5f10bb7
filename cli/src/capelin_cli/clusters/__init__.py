"""Workload clusters: created, changed and brought up with their environment."""
