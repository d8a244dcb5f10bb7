"""Conformance with Cluster API's rules: checks of an implementation in any language."""
