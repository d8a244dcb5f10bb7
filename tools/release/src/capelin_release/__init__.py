"""Builds releases of any project: images, charts, component files, bundles."""
