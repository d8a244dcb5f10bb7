"""A whole Cluster API management cluster as supervised local processes."""
