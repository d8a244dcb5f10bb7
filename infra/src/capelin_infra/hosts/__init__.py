"""Existing machines that become nodes, as the command imports, checks and lists them."""
