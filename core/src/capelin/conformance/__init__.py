"""Conformance with Cluster API's contracts: the rules as data, and runners that check them."""
