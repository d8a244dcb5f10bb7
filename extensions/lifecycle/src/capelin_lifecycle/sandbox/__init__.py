"""Runs expressions and parses manifests of policies in processes with limits of the kernel."""
