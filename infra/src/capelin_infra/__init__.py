"""The `capelin` command, and the Pulumi components behind environments."""
