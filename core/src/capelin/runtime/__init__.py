"""The Runtime SDK: hooks, their versions, and the servers that answer them."""
