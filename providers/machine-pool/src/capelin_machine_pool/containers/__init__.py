"""Machines that are containers: the engine's API, and the settings that they get."""
