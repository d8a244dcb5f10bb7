"""Imports, checks and lists existing machines that become nodes."""
