"""Hosts: existing machines that become nodes, and become free again."""
