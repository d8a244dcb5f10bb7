"""etcd of a control plane: its rules, its API and its space."""
