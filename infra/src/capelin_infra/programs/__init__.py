"""Pulumi programs: one function each, for the projects in `infra/` and for the Automation API."""

from capelin_infra.programs.dev import DevConfig, dev

__all__ = ["DevConfig", "dev"]
