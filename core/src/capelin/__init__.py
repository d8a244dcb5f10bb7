"""Cluster API in Python: what providers and Runtime Extensions are made of."""
