"""The control plane provider: hosted Kubernetes control planes."""
