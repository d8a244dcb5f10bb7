"""Pytest fixtures for tests against a real Kubernetes API server."""
