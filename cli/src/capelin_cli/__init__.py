"""The `capelin` command: environments, clusters, and their state."""
