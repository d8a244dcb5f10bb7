"""Promtool, built from its pinned Go module."""

from pathlib import Path

from capelin_embedded.binaries import Component, Project

PROMTOOL = Component(
    "promtool",
    Project(
        "prometheus",
        "Prometheus",
        sources={},
        stamps={},
        modules=Path(__file__).parent / "modules",
        tags=("remove_all_sd",),  # the clients of all clouds, half of the packages
    ),
    "github.com/prometheus/prometheus/cmd/promtool",
)
