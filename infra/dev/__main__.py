"""`pulumi up` in this folder makes a developer's environment."""

from capelin_infra.programs.dev import DevConfig, dev
from capelin_infra.programs.settings import settings

dev(settings(DevConfig))
