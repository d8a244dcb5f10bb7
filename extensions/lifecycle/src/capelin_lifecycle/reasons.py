"""The reasons of a policy's conditions, for the code and for the troubleshooting page."""

from capelin.provider import Reasons


class Reason(Reasons):
    """Why a condition is as it is, beyond `Valid` and `Ready`."""

    INVALID_CONFIGURATION = (
        "InvalidConfiguration",
        "a field has a value that the extension cannot use",
        "change the field that the message names. Clusters of the policy wait meanwhile",
    )
    UNREADABLE = (
        "Unreadable",
        "the policy has a field that this version of the extension does not know, or a wrong type",
        "correct the policy, or upgrade the extension",
    )
    SUSPENDED = "Suspended", "`spec.suspend` is true", "set it to false to enforce the policy"
    NOT_DISCOVERED = (
        "NotDiscovered",
        "Cluster API does not call the policy's hook yet, so no Cluster waits for it",
        "wait. If it remains, read the status of the ExtensionConfig of the extension",
    )
    INVALID_SOURCE = (
        "InvalidSource",
        "an object that the policy refers to is missing or invalid",
        "create or correct the object that the message names",
    )
    FAILED = (
        "Failed",
        "the policy has failed for at least one Cluster",
        "read `kubectl get lifecycleresults`, and the message of the failed results",
    )
