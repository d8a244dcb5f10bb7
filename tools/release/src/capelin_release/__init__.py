"""Building releases: images, charts, component files, bundles; for any project."""
