"""Backups: their files, stores, objects and archive of changes, and the rules of restores."""
