"""What every extension has to do, in whatever language: rules over what was seen of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from capelin.runtime.calling.discovery import (
    SaidHandlers,
    impossible_timeouts,
    malformed_names,
    repeated_names,
    unknown_policies,
)
from capelin.runtime.calling.errors import NoAnswerError
from capelin.runtime.conformance.answers import (
    bad_patches,
    bad_plans,
    bad_retries,
    bad_variables,
    effect,
    out_of_scope,
)
from capelin.runtime.conformance.evidence import Evidence, Reaction
from capelin.runtime.messages import Response
from capelin.runtime.v1alpha1 import GeneratePatches

QUICK_SECONDS = 0.2
"""What Cluster API's guide allows for patches."""

Look = Callable[[Evidence], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Rule:
    """Something to be held, how to see whether it is, and what to do if it is not."""

    name: str
    says: str
    remedy: str
    look: Look
    advice: bool = False
    """Cluster API copes without it, today."""


def _troubled(trouble: str) -> Look:
    def look(seen: Evidence) -> Iterator[str]:
        for reaction in (*seen.plain, *seen.together):
            if reaction.trouble == trouble:
                yield _told(reaction)

    return look


def _told(reaction: Reaction) -> str:
    if isinstance(reaction.answer, NoAnswerError):
        return f"{reaction.what}: {reaction.answer}"
    return f"{reaction.what}: HTTP status {reaction.answer.status}"


def _content_type(seen: Evidence) -> Iterator[str]:
    if seen.needs_content_type:
        yield "a request without Content-Type is refused, and the same with it is not"


def _documents(seen: Evidence) -> Iterator[str]:
    kinds: list[type[Response]] = [SaidHandlers] * len(seen.discovery)
    kinds += [asked.hook.response_type() for asked in seen.asked for _ in range(2)]
    for reaction, kind in zip(seen.plain, kinds, strict=True):
        if why := reaction.unreadable(kind):
            yield f"{reaction.what}: the answer cannot be read: {why}"


def _kinds(seen: Evidence) -> Iterator[str]:
    wanted = [(seen.discovery_hook.api_version, "DiscoveryResponse")] * len(seen.discovery)
    for asked in seen.asked:
        hook = asked.hook
        wanted += [(hook.id.api_version, hook.response_type().__name__)] * 2
    for reaction, (version, kind) in zip(seen.plain, wanted, strict=True):
        if reaction.document is None:
            continue
        said = [reaction.document.get(key) for key in ("apiVersion", "kind")]
        if any(one not in {None, right} for one, right in zip(said, (version, kind), strict=True)):
            yield f"{reaction.what}: the answer says {said[0]} {said[1]}, not {version} {kind}"


def _statuses(seen: Evidence) -> Iterator[str]:
    for reaction in seen.plain:
        if reaction.document is not None and reaction.status not in {"Success", "Failure"}:
            yield f"{reaction.what}: status is {reaction.document.get('status')!r}"


def _discovery(seen: Evidence) -> Iterator[str]:
    for reaction in seen.discovery:
        if reaction.status == "Failure":
            yield f"{reaction.what}: Failure: {reaction.message}"
    first, again = (reaction.document for reaction in seen.discovery)
    if first is not None and again is not None and first != again:
        yield "two discoveries one after the other are answered differently"


def _exclusive(seen: Evidence) -> Iterator[str]:
    counts: dict[str, int] = {}
    for asked in seen.asked:
        if asked.hook.exclusive:
            counts[asked.hook.id.name] = counts.get(asked.hook.id.name, 0) + 1
    for name, count in counts.items():
        if count > 1:
            yield f"{count} handlers are for {name}, of which there can be one"


def _deterministic(seen: Evidence) -> Iterator[str]:
    for asked in seen.asked:
        if asked.hook.pure and effect(asked, asked.first) != effect(asked, asked.again):
            yield f"{asked.first.what}: the same request gets another answer the second time"


def _idempotent(seen: Evidence) -> Iterator[str]:
    for asked in seen.asked:
        if asked.first.succeeded and asked.again.status == "Failure" and not asked.hook.pure:
            yield f"{asked.first.what}: fails the second time: {asked.again.message}"


def _quiet(seen: Evidence) -> Iterator[str]:
    for asked in seen.asked:
        failed = asked.first.status == asked.again.status == "Failure" and not asked.hook.pure
        if failed and asked.first.message != asked.again.message:
            yield f"{asked.first.what}: the same failure has another message the second time"


def _derived(what: str) -> Look:
    def look(seen: Evidence) -> Iterator[str]:
        for asked in seen.asked:
            reaction = asked.derived.get(what)
            succeeds = asked.first.succeeded and asked.again.succeeded
            if reaction is not None and succeeds and not reaction.succeeded:
                why = _told(reaction) if reaction.trouble else f"{reaction.what}: Failure"
                yield f"{why}: {reaction.message}".rstrip(": ")

    return look


def _malformed(seen: Evidence) -> Iterator[str]:
    for asked in seen.asked:
        reaction = asked.derived.get("malformed")
        answers = asked.first.document is not None
        if reaction is not None and answers and reaction.status != "Failure":
            yield _told(reaction) if reaction.trouble else f"{reaction.what}: no Failure"


def _quick(seen: Evidence) -> Iterator[str]:
    for asked in seen.asked:
        if asked.hook is GeneratePatches and not isinstance(asked.again.answer, NoAnswerError):
            took = asked.again.answer.seconds
            if took > QUICK_SECONDS:
                yield f"{asked.again.what}: more than {QUICK_SECONDS * 1000:.0f} ms"


RULES = (
    Rule(
        "reachable",
        "The server answers HTTPS.",
        "Start it, and check host, port and firewall.",
        _troubled("unreachable"),
    ),
    Rule(
        "tls",
        "Its certificate names the host that is called and is signed by the ExtensionConfig's CA.",
        "Issue the certificate for the service's name (NAME.NAMESPACE.svc), and check caBundle.",
        _troubled("untrusted"),
    ),
    Rule(
        "redirects",
        "It answers where it is asked: nobody follows a redirect.",
        "Serve the hook's own path, and put path prefixes into the ExtensionConfig.",
        _troubled("redirect"),
    ),
    Rule(
        "content-type",
        "It takes requests without Content-Type and Accept: Cluster API sends neither.",
        "Read the raw body as JSON, whatever the headers say.",
        _content_type,
    ),
    Rule(
        "status-200",
        "Every answer has HTTP status 200, failures too.",
        "Answer 200 with status Failure and a message in the body.",
        _troubled("status"),
    ),
    Rule(
        "timeouts",
        "An answer comes within the handler's timeout.",
        "Answer with retryAfterSeconds and go on in the background.",
        _troubled("timeout"),
    ),
    Rule(
        "answers",
        "Every answer is JSON of the hook's response type.",
        "Hold the answer against the OpenAPI document; patches are base64.",
        _documents,
    ),
    Rule(
        "kinds",
        "Answers that say apiVersion and kind say those of the hook.",
        "Set apiVersion to the hook's and kind to its name with Response at the end.",
        _kinds,
    ),
    Rule(
        "status",
        "Every answer says whether it is a Success or a Failure.",
        "Set status to Success or Failure, with a capital.",
        _statuses,
    ),
    Rule(
        "discovery",
        "Discovery succeeds and says the same every time.",
        "Answer it from what is registered, in a fixed order.",
        _discovery,
    ),
    Rule(
        "handler-names",
        "Every handler's name is a DNS label.",
        "Use lower-case letters, digits and dashes, at most 63.",
        lambda seen: malformed_names(seen.handlers),
    ),
    Rule(
        "unique-names",
        "No two handlers have the same name.",
        "Rename one: names are for the whole server, not for a hook.",
        lambda seen: repeated_names(seen.handlers),
    ),
    Rule(
        "handler-timeouts",
        "A handler's timeoutSeconds is from 0 to 30.",
        "Say 30 at most, or nothing for 10.",
        lambda seen: impossible_timeouts(seen.handlers),
    ),
    Rule(
        "failure-policies",
        "A handler's failurePolicy is Fail or Ignore.",
        "Say one of the two, or nothing for Fail.",
        lambda seen: unknown_policies(seen.handlers),
    ),
    Rule(
        "known-hooks",
        "Every handler is for a hook that Cluster API has.",
        "Leave out hooks of newer versions: one such handler makes Cluster API refuse all.",
        lambda seen: iter(seen.unknown),
    ),
    Rule(
        "exclusive-hooks",
        "There is at most one handler for each in-place hook.",
        "Remove the others.",
        _exclusive,
    ),
    Rule(
        "retry-after",
        "Answers of blocking hooks say retryAfterSeconds, 0 or more.",
        "Say 0 to let the caller go on.",
        bad_retries,
    ),
    Rule(
        "patches",
        "Patches are for templates of the request, and fit them.",
        "Use the uid of the request's item, and check the paths of the patch.",
        bad_patches,
    ),
    Rule(
        "patch-scope",
        "Patches change spec, labels and annotations: the rest is dropped without a word.",
        "Leave everything else alone.",
        out_of_scope,
        advice=True,
    ),
    Rule(
        "variables",
        "Discovered variables have names of their own and schemas.",
        "Describe each variable once, with schema.openAPIV3Schema.",
        bad_variables,
    ),
    Rule(
        "upgrade-plans",
        "An upgrade plan goes up minor by minor, and ends at the target.",
        "Add the versions that are missing, and end with toKubernetesVersion.",
        bad_plans,
    ),
    Rule(
        "determinism",
        "Hooks that only compute give the same answer to the same request.",
        "Keep time, chance and the order of sets out of answers: a change rolls out machines.",
        _deterministic,
    ),
    Rule(
        "idempotence",
        "What succeeded succeeds when it is called again.",
        "Check what is there before doing anything.",
        _idempotent,
    ),
    Rule(
        "messages",
        "The same failure has the same message every time.",
        "Keep times, ids and counters out of messages: they end up in conditions.",
        _quiet,
    ),
    Rule(
        "unknown-fields",
        "Fields that it does not know do not trouble it: newer callers send them.",
        "Ignore them.",
        _derived("unknown-fields"),
    ),
    Rule(
        "large-requests",
        "It takes requests of nearly 20 MiB, as of a cluster with many large templates.",
        "Raise the limit of the server, and of proxies before it, to 20 MiB.",
        _derived("large"),
    ),
    Rule(
        "field-case",
        "Names of fields may be in any case, as Go reads them.",
        "Compare names without regard to case.",
        _derived("other-case"),
        advice=True,
    ),
    Rule(
        "malformed-requests",
        "What is no JSON is answered with a Failure.",
        "Catch the error of the parser, and answer 200 with status Failure.",
        _malformed,
        advice=True,
    ),
    Rule(
        "quick-patches",
        "Patches of a small cluster are made within 200 ms.",
        "Compute them from the request alone, without any call.",
        _quick,
        advice=True,
    ),
)
