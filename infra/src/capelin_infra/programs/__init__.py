"""Pulumi programs: one function each, for the projects in `infra/` and for the Automation API."""

from capelin_infra.programs.dev import DevConfig, dev
from capelin_infra.programs.e2e import E2EConfig, e2e

__all__ = ["DevConfig", "E2EConfig", "dev", "e2e"]
