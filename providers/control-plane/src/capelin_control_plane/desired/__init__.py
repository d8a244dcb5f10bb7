"""Desired state of a control plane, from its spec, and the state that backends observe. Pure."""
