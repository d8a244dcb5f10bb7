"""Which policies are for which Clusters, and what a replica knows of both."""
