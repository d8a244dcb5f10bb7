"""Reconciles policies and results."""
