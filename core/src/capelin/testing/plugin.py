"""The pytest plugin: fixtures by name, loaded through the `pytest11` entry point."""
