"""Pulumi: the provider `capelin`, its resources, and components and programs on top."""
