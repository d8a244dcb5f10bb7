"""Pulumi components: each wires one part of an environment, and waits until it can be used."""
