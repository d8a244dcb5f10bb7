"""The `capelin` command: environments, clusters, and what is known about them."""
