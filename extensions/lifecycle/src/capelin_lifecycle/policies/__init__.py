"""Matches policies with Clusters, and keeps a replica's copies of both."""
