"""Environments: a management cluster and all that belongs to it, as processes on this machine."""

from capelin_embedded.management.components import workload_destinations
from capelin_embedded.management.environment import (
    DEFAULT_NAME,
    Environment,
    ExistingServer,
    Settings,
    all_environments,
    environment_named,
    existing_server_of,
)
from capelin_embedded.management.manifests import (
    ENVIRONMENT_LABEL,
    WEBHOOKS,
    WebhookEndpoint,
    apply_manifests,
    is_webhook,
    localize,
    without_replaced,
)
from capelin_embedded.management.next_version import (
    Prefetch,
    prefetch_by_default,
    upgrades_of,
)
from capelin_embedded.management.providers import (
    CORE,
    SubstitutionError,
    code_digest,
    installed_providers,
    optional_providers,
    provider_modules,
    render_template,
    required_programs,
    workload_programs,
)
from capelin_embedded.management.resume import api_answers, is_hosted, revive_supervisor
from capelin_embedded.management.status_file import (
    ProcessStatus,
    Status,
    current_status,
    read_status,
    supervisor_process,
)
from capelin_embedded.management.stop import restart_process, stop_environment
from capelin_embedded.management.supervision import supervise
from capelin_embedded.management.uninstall import remove_environment
from capelin_embedded.management.up_plan import (
    FetchPrograms,
    FetchProviderPrograms,
    Step,
    UpRequest,
    WaitUntilUp,
    plan_up,
)
from capelin_embedded.management.up_steps import UpView, bring_up, carry_out, observe

__all__ = [
    "CORE",
    "DEFAULT_NAME",
    "ENVIRONMENT_LABEL",
    "WEBHOOKS",
    "Environment",
    "ExistingServer",
    "FetchPrograms",
    "FetchProviderPrograms",
    "Prefetch",
    "ProcessStatus",
    "Settings",
    "Status",
    "Step",
    "SubstitutionError",
    "UpRequest",
    "UpView",
    "WaitUntilUp",
    "WebhookEndpoint",
    "all_environments",
    "api_answers",
    "apply_manifests",
    "bring_up",
    "carry_out",
    "code_digest",
    "current_status",
    "environment_named",
    "existing_server_of",
    "installed_providers",
    "is_hosted",
    "is_webhook",
    "localize",
    "observe",
    "optional_providers",
    "plan_up",
    "prefetch_by_default",
    "provider_modules",
    "read_status",
    "remove_environment",
    "render_template",
    "required_programs",
    "restart_process",
    "revive_supervisor",
    "stop_environment",
    "supervise",
    "supervisor_process",
    "upgrades_of",
    "without_replaced",
    "workload_destinations",
    "workload_programs",
]
