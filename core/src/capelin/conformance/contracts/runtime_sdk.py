"""What core asks of a Runtime Extension."""

from capelin.conformance.contracts.rule import BOOK, PROPOSALS, Contract, ContractRule, Field
from capelin.contract import (
    BEFORE_UPGRADE_HOOK_PREFIX,
    INJECT_CA_FROM_SECRET_ANNOTATION,
    OK_TO_DELETE_ANNOTATION,
)

_NAME = "runtime-sdk"
_PAGES = f"{BOOK}/tasks/experimental-features/runtime-sdk"
_LIFECYCLE = f"{_PAGES}/implement-lifecycle-hooks"
_TOPOLOGY = f"{_PAGES}/implement-topology-mutation-hook"
_DEPLOY = f"{_PAGES}/deploy-runtime-extension"
_PROPOSAL = f"{PROPOSALS}/20220221-runtime-SDK.md"
_SERVER = "server"
_HANDLER = "handler"


def _blocks(hook: str, name: str, says: str, *words: str) -> ContractRule:
    return ContractRule(
        id=f"{_NAME}/{name}",
        title=hook,
        heading=hook,
        applies_to=f"{hook} handler",
        says=says,
        fields=(Field("retryAfterSeconds", "int32"),),
        words=words,
        document=_LIFECYCLE,
    )


RUNTIME_SDK = Contract(
    name=_NAME,
    title="Runtime SDK",
    document=f"{_PAGES}/implement-extensions",
    rules=(
        ContractRule(
            id=f"{_NAME}/server",
            title="Server",
            heading="Implementation",
            applies_to=_SERVER,
            says=(
                "An HTTPS server answers each of its hooks to POST at the hook's own path, as "
                "the OpenAPI document describes it."
            ),
            mandatory=True,
        ),
        ContractRule(
            id=f"{_NAME}/discovery",
            title="Discovery",
            heading="Discovery hook",
            applies_to=_SERVER,
            says=(
                "Discovery lists every handler by a unique name, with its hook, timeout and "
                "failure policy, and nothing that the caller does not know."
            ),
            mandatory=True,
            fields=(
                Field("handlers[].name", "DNS label"),
                Field("handlers[].requestHook.apiVersion", "string"),
                Field("handlers[].requestHook.hook", "string"),
                Field("handlers[].timeoutSeconds", "int32 from 0 to 30"),
                Field("handlers[].failurePolicy", "Fail or Ignore"),
            ),
            document=_PROPOSAL,
        ),
        ContractRule(
            id=f"{_NAME}/answers",
            title="Answers",
            heading="Runtime SDK rules",
            applies_to=_SERVER,
            says=(
                "Every answer is JSON with HTTP status 200 and says itself whether it is a "
                "success or a failure."
            ),
            mandatory=True,
            fields=(Field("status", "Success or Failure"), Field("message", "string")),
            document=_PROPOSAL,
        ),
        ContractRule(
            id=f"{_NAME}/timeouts",
            title="Timeouts",
            heading="Timeouts",
            applies_to=_HANDLER,
            says=(
                "An answer takes milliseconds, and 30 seconds at the very most; what takes "
                "longer goes on in the background."
            ),
            mandatory=True,
        ),
        ContractRule(
            id=f"{_NAME}/availability",
            title="Availability",
            heading="Availability",
            applies_to=_SERVER,
            says="The server is robust: core's controllers stand still while it is away.",
        ),
        ContractRule(
            id=f"{_NAME}/blocking",
            title="Blocking",
            heading="Blocking Hooks",
            applies_to=_HANDLER,
            says=(
                "A handler holds its step up by asking to be called again after some seconds; it "
                "may be called earlier, and all handlers of the hook are."
            ),
            mandatory=True,
            fields=(Field("retryAfterSeconds", "int32"),),
        ),
        ContractRule(
            id=f"{_NAME}/side-effects",
            title="Side effects",
            heading="Side Effects",
            applies_to=_HANDLER,
            says="A handler works on its request alone wherever it can.",
        ),
        ContractRule(
            id=f"{_NAME}/idempotence",
            title="Idempotence",
            heading="Idempotence",
            applies_to=_HANDLER,
            says="A handler can be called again after it succeeded, and succeeds again.",
            mandatory=True,
        ),
        ContractRule(
            id=f"{_NAME}/dependencies",
            title="Dependencies",
            heading="Avoid dependencies",
            applies_to=_HANDLER,
            says="A handler does not need another extension to have done something.",
        ),
        ContractRule(
            id=f"{_NAME}/determinism",
            title="Determinism",
            heading="Deterministic result",
            applies_to=_HANDLER,
            says="The same request gets the same answer.",
            mandatory_if="the hook patches or validates a topology",
        ),
        ContractRule(
            id=f"{_NAME}/messages",
            title="Messages",
            heading="Error messages",
            applies_to=_HANDLER,
            says=(
                "Messages hold no secret, no time and nothing else that changes by itself: core "
                "shows them in conditions."
            ),
            mandatory=True,
        ),
        ContractRule(
            id=f"{_NAME}/failure-policy",
            title="Failure policy",
            heading="Error management",
            applies_to=_HANDLER,
            says=(
                "A handler says whether a call that fails is ignored or tried again until it "
                "succeeds; an answer that is a failure is never ignored."
            ),
        ),
        ContractRule(
            id=f"{_NAME}/settings",
            title="Settings",
            heading="Settings",
            applies_to=_HANDLER,
            says="Settings come with each request, and users can read what they mean.",
            fields=(Field("settings", "strings by name"),),
        ),
        ContractRule(
            id=f"{_NAME}/registration",
            title="Registration",
            heading="ExtensionConfig",
            applies_to="ExtensionConfig",
            says=(
                "An ExtensionConfig says where the server is, which CA to trust, and for which "
                "namespaces it is."
            ),
            mandatory=True,
            words=(INJECT_CA_FROM_SECRET_ANNOTATION,),
        ),
        ContractRule(
            id=f"{_NAME}/high-availability",
            title="Replicas",
            heading="Availability",
            applies_to="deployment",
            says="There is always a replica that answers, during updates as well.",
            document=_DEPLOY,
        ),
        ContractRule(
            id=f"{_NAME}/identity",
            title="Permissions",
            heading="Identity and access management",
            applies_to="deployment",
            says="The server runs as its own service account, with the permissions it needs.",
            document=_DEPLOY,
        ),
        _blocks(
            "BeforeClusterCreate",
            "before-cluster-create",
            "It is called before anything of a topology is made, and can hold that up.",
        ),
        ContractRule(
            id=f"{_NAME}/after-control-plane-initialized",
            title="AfterControlPlaneInitialized",
            heading="AfterControlPlaneInitialized",
            applies_to="AfterControlPlaneInitialized handler",
            says="It is called when the control plane first answers, and holds nothing up.",
            document=_LIFECYCLE,
        ),
        _blocks(
            "BeforeClusterUpgrade",
            "before-cluster-upgrade",
            "It is called before a new version reaches the control plane, and can hold that up.",
            BEFORE_UPGRADE_HOOK_PREFIX,
        ),
        _blocks(
            "BeforeControlPlaneUpgrade",
            "before-control-plane-upgrade",
            "It is called before each version that the control plane goes to, and can hold that "
            "up.",
        ),
        _blocks(
            "AfterControlPlaneUpgrade",
            "after-control-plane-upgrade",
            "It is called after each version that the control plane went to, and can hold up what "
            "comes next.",
        ),
        _blocks(
            "BeforeWorkersUpgrade",
            "before-workers-upgrade",
            "It is called before each version that the workers go to, and can hold that up.",
        ),
        _blocks(
            "AfterWorkersUpgrade",
            "after-workers-upgrade",
            "It is called after each version that the workers went to, and can hold up what comes "
            "next.",
        ),
        _blocks(
            "AfterClusterUpgrade",
            "after-cluster-upgrade",
            "It is called when everything has the new version, and can hold up the next upgrade.",
        ),
        _blocks(
            "BeforeClusterDelete",
            "before-cluster-delete",
            "It is called before anything of a topology is removed, and can hold that up.",
            OK_TO_DELETE_ANNOTATION,
        ),
        ContractRule(
            id=f"{_NAME}/patches",
            title="Patches of a topology",
            heading="Patch extension guidelines",
            applies_to="GeneratePatches and ValidateTopology handlers",
            says=(
                "Patches follow from the request alone, are made in at most 200 ms, and change "
                "nothing beyond the template's spec."
            ),
            mandatory=True,
            document=_TOPOLOGY,
        ),
        ContractRule(
            id=f"{_NAME}/variables",
            title="Variables of a topology",
            heading="Variable discovery guidelines",
            applies_to="DiscoverVariables handler",
            says="Definitions of variables follow from the settings alone, and stay compatible.",
            document=_TOPOLOGY,
        ),
        ContractRule(
            id=f"{_NAME}/versions",
            title="Versions of hooks",
            heading="Runtime SDK rules",
            applies_to="hooks",
            says=(
                "A version of a hook loses nothing once it is out; the versions of a hook can be "
                "converted into each other, and old ones stay for a while."
            ),
            mandatory=True,
            document=_PROPOSAL,
        ),
    ),
)
