"""The status of environments and clusters, and why a cluster is not ready."""
