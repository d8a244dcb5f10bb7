"""Real Kubernetes components as supervised processes: downloads, builds, starts and adopts them."""
