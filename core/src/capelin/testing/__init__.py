"""Fixtures for tests against a real Kubernetes API server."""
