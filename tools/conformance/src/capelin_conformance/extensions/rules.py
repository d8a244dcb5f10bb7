"""The requirements for every extension, in any language: rules over its observed behavior."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from capelin.runtime import AnyHook
from capelin.runtime.client import (
    FailureKind,
    NoResponseError,
    impossible_timeouts,
    malformed_names,
    repeated_names,
    unknown_policies,
)
from capelin.runtime.messages import Response
from capelin.runtime.v1alpha1 import (
    DiscoverVariables,
    DiscoveryResponse,
    GeneratePatches,
    GenerateUpgradePlan,
)

from capelin_conformance.extensions.content import (
    bad_patches,
    bad_plans,
    bad_retries,
    bad_variables,
    effect,
    out_of_scope,
)
from capelin_conformance.extensions.exchange import Exchange, Observations, Probe

QUICK_SECONDS = 0.2
"""The limit for patches in Cluster API's guide."""

Check = Callable[[Observations], Iterator[str]]
"""Yields the problems."""


def _responds(observed: Observations) -> bool:
    """Whether any response came. Without one, most rules have nothing to judge."""
    return any(not isinstance(e.outcome, NoResponseError) for e in observed.discovery)


def _always(_: Observations) -> bool:
    return True


def _connects(observed: Observations) -> bool:
    return any(exchange.failure_kind != "unreachable" for exchange in observed.discovery)


def _reached(observed: Observations) -> bool:
    return any(e.failure_kind not in {"unreachable", "untrusted"} for e in observed.discovery)


def _discovered(observed: Observations) -> bool:
    return any(exchange.document is not None for exchange in observed.discovery)


def _answered(
    is_judged: Callable[[AnyHook], bool] = lambda _: True,
) -> Callable[[Observations], bool]:
    """Whether a handler of such a hook has succeeded: a failure has no response to judge."""

    def tried(observed: Observations) -> bool:
        return any(
            is_judged(probe.hook) and (probe.first.succeeded or probe.again.succeeded)
            for probe in observed.probes
        )

    return tried


def _answered_by(hook: AnyHook) -> Callable[[Observations], bool]:
    return _answered(lambda judged: judged is hook)


def _failed_twice(observed: Observations) -> bool:
    return any(_fails_twice(probe) for probe in observed.probes)


def _fails_twice(probe: Probe) -> bool:
    return probe.first.status == probe.again.status == "Failure" and not probe.hook.pure


def _asked_malformed(observed: Observations) -> bool:
    return any(
        "malformed" in probe.variants and probe.first.document is not None
        for probe in observed.probes
    )


def _asked_large(observed: Observations) -> bool:
    return any("large" in probe.variants and probe.first.succeeded for probe in observed.probes)


@dataclass(frozen=True, slots=True)
class Rule:
    """A requirement, its check, and a remedy."""

    name: str
    requirement: str
    hint: str
    check: Check
    advice: bool = False
    """Cluster API works without it, today."""
    tried: Callable[[Observations], bool] = _discovered
    """Whether the observations allow a judgement."""


def _failures(kind: FailureKind) -> Check:
    def check(observed: Observations) -> Iterator[str]:
        for exchange in (*observed.plain, *observed.concurrent):
            if exchange.failure_kind == kind:
                yield _described(exchange)

    return check


def _described(exchange: Exchange) -> str:
    if isinstance(exchange.outcome, NoResponseError):
        return f"{exchange.label}: {exchange.outcome}"
    return f"{exchange.label}: HTTP status {exchange.outcome.status}"


def _content_type(observed: Observations) -> Iterator[str]:
    if observed.needs_content_type:
        yield "the server rejects a request without Content-Type, and accepts the same with it"


def _documents(observed: Observations) -> Iterator[str]:
    kinds: list[type[Response]] = [DiscoveryResponse] * len(observed.discovery)
    kinds += [probe.hook.response_type() for probe in observed.probes for _ in range(2)]
    for exchange, kind in zip(observed.plain, kinds, strict=True):
        if reason := exchange.unreadable(kind):
            yield f"{exchange.label}: the response is unreadable: {reason}"


def _kinds(observed: Observations) -> Iterator[str]:
    expected = [(observed.discovery_hook.api_version, "DiscoveryResponse")] * len(
        observed.discovery
    )
    for probe in observed.probes:
        hook = probe.hook
        expected += [(hook.id.api_version, hook.response_type().__name__)] * 2
    for exchange, (version, kind) in zip(observed.plain, expected, strict=True):
        if exchange.document is None:
            continue
        actual = [exchange.document.get(key) for key in ("apiVersion", "kind")]
        right = zip(actual, (version, kind), strict=True)
        if any(value not in {None, wanted} for value, wanted in right):
            yield f"{exchange.label}: it is {actual[0]} {actual[1]}, not {version} {kind}"


def _statuses(observed: Observations) -> Iterator[str]:
    for exchange in observed.plain:
        if exchange.document is not None and exchange.status not in {"Success", "Failure"}:
            yield f"{exchange.label}: status is {exchange.document.get('status')!r}"


def _discovery(observed: Observations) -> Iterator[str]:
    for exchange in observed.discovery:
        if exchange.status == "Failure":
            yield f"{exchange.label}: Failure: {exchange.message}"
    first, again = (exchange.document for exchange in observed.discovery)
    if first is not None and again is not None and first != again:
        yield "two discoveries one after the other have different responses"


def _exclusive(observed: Observations) -> Iterator[str]:
    counts: dict[str, int] = {}
    for probe in observed.probes:
        if probe.hook.exclusive:
            counts[probe.hook.id.name] = counts.get(probe.hook.id.name, 0) + 1
    for name, count in counts.items():
        if count > 1:
            yield f"{count} handlers serve {name}, which allows one"


def _deterministic(observed: Observations) -> Iterator[str]:
    for probe in observed.probes:
        if probe.hook.pure and effect(probe, probe.first) != effect(probe, probe.again):
            yield f"{probe.first.label}: the same request has another response the second time"


def _idempotent(observed: Observations) -> Iterator[str]:
    for probe in observed.probes:
        if probe.first.succeeded and probe.again.status == "Failure" and not probe.hook.pure:
            yield f"{probe.first.label}: fails the second time: {probe.again.message}"


def _success(observed: Observations) -> Iterator[str]:
    for probe in observed.probes:
        exchanges = (probe.first, probe.again, *probe.variants.values())
        if probe.first.status == "Failure" and not any(e.succeeded for e in exchanges):
            yield f"{probe.first.label}: it never succeeded: {probe.first.message}".rstrip(": ")


def _stable_messages(observed: Observations) -> Iterator[str]:
    for probe in observed.probes:
        if _fails_twice(probe) and probe.first.message != probe.again.message:
            yield f"{probe.first.label}: the same failure has another message the second time"


def _variant(name: str) -> Check:
    def check(observed: Observations) -> Iterator[str]:
        for probe in observed.probes:
            exchange = probe.variants.get(name)
            succeeds = probe.first.succeeded and probe.again.succeeded
            if exchange is not None and succeeds and not exchange.succeeded:
                failed = exchange.failure_kind is not None
                reason = _described(exchange) if failed else f"{exchange.label}: Failure"
                yield f"{reason}: {exchange.message}".rstrip(": ")

    return check


def _malformed(observed: Observations) -> Iterator[str]:
    for probe in observed.probes:
        exchange = probe.variants.get("malformed")
        responds = probe.first.document is not None
        if exchange is not None and responds and exchange.status != "Failure":
            failed = exchange.failure_kind is not None
            yield _described(exchange) if failed else f"{exchange.label}: no Failure"


def _quick(observed: Observations) -> Iterator[str]:
    for probe in observed.probes:
        if probe.hook is GeneratePatches and not isinstance(probe.again.outcome, NoResponseError):
            seconds = probe.again.outcome.seconds
            if seconds > QUICK_SECONDS:
                yield f"{probe.again.label}: more than {QUICK_SECONDS * 1000:.0f} ms"


RULES = (
    Rule(
        "reachable",
        "The server responds over HTTPS.",
        "Start it, and check host, port and firewall.",
        _failures("unreachable"),
        tried=_always,
    ),
    Rule(
        "tls",
        "Its certificate names the host and is signed by the ExtensionConfig's CA.",
        "Issue the certificate for the service's name (NAME.NAMESPACE.svc), and check caBundle.",
        _failures("untrusted"),
        tried=_connects,
    ),
    Rule(
        "redirects",
        "It responds without a redirect: callers do not follow any.",
        "Serve the hook's own path, and put path prefixes into the ExtensionConfig.",
        _failures("redirect"),
        tried=_responds,
    ),
    Rule(
        "content-type",
        "It accepts requests without Content-Type and Accept: Cluster API sends neither.",
        "Read the raw body as JSON, whatever the headers.",
        _content_type,
        tried=_responds,
    ),
    Rule(
        "status-200",
        "Every response has HTTP status 200, failures too.",
        "Respond with 200, and with status Failure and a message in the body.",
        _failures("status"),
        tried=_responds,
    ),
    Rule(
        "timeouts",
        "A response comes within the handler's timeout.",
        "Respond with retryAfterSeconds, and do the work in the background.",
        _failures("timeout"),
        tried=_reached,
    ),
    Rule(
        "responses",
        "Every response is JSON of the hook's response type.",
        "Compare the response with the OpenAPI document. Patches are base64.",
        _documents,
        tried=_responds,
    ),
    Rule(
        "kinds",
        "apiVersion and kind of a response are those of the hook, if set.",
        "Set apiVersion to the hook's and kind to its name with Response at the end.",
        _kinds,
    ),
    Rule(
        "status",
        "Every response has the status Success or Failure.",
        "Set status to Success or Failure, with a capital.",
        _statuses,
    ),
    Rule(
        "discovery",
        "Discovery succeeds, with the same response every time.",
        "List the registered handlers in a fixed order.",
        _discovery,
    ),
    Rule(
        "handler-names",
        "Every handler's name is a DNS label.",
        "Use lower-case letters, digits and dashes, at most 63.",
        lambda observed: malformed_names(observed.handlers),
    ),
    Rule(
        "unique-names",
        "No two handlers have the same name.",
        "Rename one: names are unique in the server, not per hook.",
        lambda observed: repeated_names(observed.handlers),
    ),
    Rule(
        "handler-timeouts",
        "A handler's timeoutSeconds is from 0 to 30.",
        "Set 30 at most, or leave it out for 10.",
        lambda observed: impossible_timeouts(observed.handlers),
    ),
    Rule(
        "failure-policies",
        "A handler's failurePolicy is Fail or Ignore.",
        "Set one of the two, or leave it out for Fail.",
        lambda observed: unknown_policies(observed.handlers),
    ),
    Rule(
        "known-hooks",
        "Every handler serves a hook of Cluster API.",
        "Leave out hooks of newer versions: Cluster API refuses all handlers for one.",
        lambda observed: iter(observed.unknown),
    ),
    Rule(
        "exclusive-hooks",
        "There is at most one handler for each in-place hook.",
        "Remove the others.",
        _exclusive,
    ),
    Rule(
        "success",
        "Every handler succeeds for the cluster of the checks.",
        "Correct its failure, pass its settings, or name a cluster that it accepts.",
        _success,
    ),
    Rule(
        "retry-after",
        "Responses of blocking hooks have retryAfterSeconds, 0 or more.",
        "Set 0 to let the caller proceed.",
        bad_retries,
        tried=_answered(lambda hook: hook.blocks()),
    ),
    Rule(
        "patches",
        "Patches are for templates of the request, and apply to them.",
        "Use the uid of the request's item, and check the paths of the patch.",
        bad_patches,
        tried=_answered_by(GeneratePatches),
    ),
    Rule(
        "patch-scope",
        "Patches change spec, labels and annotations: Cluster API ignores the rest.",
        "Change nothing else.",
        out_of_scope,
        advice=True,
        tried=_answered_by(GeneratePatches),
    ),
    Rule(
        "variables",
        "Discovered variables have unique names and schemas.",
        "Describe each variable once, with schema.openAPIV3Schema.",
        bad_variables,
        tried=_answered_by(DiscoverVariables),
    ),
    Rule(
        "upgrade-plans",
        "An upgrade plan rises minor by minor, ends at the target, and is empty there.",
        "Add the versions that are missing, and end with toKubernetesVersion. Return no step for"
        " a control plane that has this version.",
        bad_plans,
        tried=_answered_by(GenerateUpgradePlan),
    ),
    Rule(
        "determinism",
        "Pure hooks have the same response to the same request.",
        "Keep time, chance and the order of sets out: a changed patch rolls out machines.",
        _deterministic,
        tried=_answered(lambda hook: hook.pure),
    ),
    Rule(
        "idempotence",
        "A call that succeeded succeeds again.",
        "Check what is done already.",
        _idempotent,
        tried=_answered(lambda hook: not hook.pure),
    ),
    Rule(
        "messages",
        "The same failure has the same message every time.",
        "Keep times, ids and counters out of messages: they appear in conditions.",
        _stable_messages,
        tried=_failed_twice,
    ),
    Rule(
        "unknown-fields",
        "It ignores unknown fields: newer callers send them.",
        "Ignore them.",
        _variant("unknown-fields"),
        tried=_answered(),
    ),
    Rule(
        "large-requests",
        "It accepts requests of nearly 20 MiB, for clusters with many large templates.",
        "Raise the limit of the server, and of proxies before it, to 20 MiB.",
        _variant("large"),
        tried=_asked_large,
    ),
    Rule(
        "field-case",
        "Names of fields may be in any case, as Go reads them.",
        "Compare names without regard to case.",
        _variant("other-case"),
        advice=True,
        tried=_answered(),
    ),
    Rule(
        "malformed-requests",
        "A request that is not JSON gets a Failure.",
        "Catch the parser's error, and respond with 200 and status Failure.",
        _malformed,
        advice=True,
        tried=_asked_malformed,
    ),
    Rule(
        "quick-patches",
        "Patches of a small cluster take less than 200 ms.",
        "Compute them from the request only, without other calls.",
        _quick,
        advice=True,
        tried=_answered_by(GeneratePatches),
    ),
)
