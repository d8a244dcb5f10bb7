"""`pulumi up` in this folder makes a developer's environment."""

from capelin_infra.pulumi.programs.dev import DevConfig, dev
from capelin_infra.pulumi.programs.settings import settings

dev(settings(DevConfig))
