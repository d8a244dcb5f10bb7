"""Real Kubernetes parts as supervised processes: getting the programs, running, adopting them."""
