"""`pulumi up` in this folder makes a kind cluster with everything of a release in pods."""

from capelin_infra.programs import E2EConfig, e2e
from capelin_infra.programs.settings import settings

e2e(settings(E2EConfig))
