"""Why a Cluster waits: chains of objects from the Cluster to the cause."""
