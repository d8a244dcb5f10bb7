"""The infrastructure provider: machine pools, machines and the cluster around them."""
