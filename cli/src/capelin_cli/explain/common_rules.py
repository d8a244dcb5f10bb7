"""Rules for objects of every kind: paused, without a controller, refused by a webhook, deleted."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from capelin.contract import PAUSED_ANNOTATION

from capelin_cli.explain.facts import (
    ACTIVITIES,
    SUMMARIES,
    Facts,
    Finding,
    Observation,
    Subject,
    describe,
    reported,
    waits,
)
from capelin_cli.explain.model import Reference

WEBHOOK: Final = re.compile(r'failed calling webhook "(?P<name>[^"]+)"')
_DENIED: Final = re.compile(r'admission webhook "(?P<name>[^"]+)" denied the request')
_POLICY: Final = re.compile(r"ValidatingAdmissionPolicy '(?P<name>[^']+)'")
_QUOTA: Final = re.compile(r"exceeded quota: (?P<name>[\w.-]+)")
_FORBIDDEN: Final = re.compile(
    r'User "(?P<user>[^"]+)" cannot (?P<verb>\w+) resource "(?P<kind>[^"]+)"'
)
_SECRET: Final = re.compile(
    r'[Ss]ecrets? "(?:[\w.-]+/)?(?P<name>[\w.-]+)" not found|no Secret (?P<ours>[\w.-]+) '
)
_OURS: Final = "cluster.x-k8s.io"


def paused(subject: Subject, _facts: Facts) -> Iterator[Finding]:
    """The annotation makes controllers ignore the object."""
    if subject.is_paused:
        reference = subject.reference
        yield Finding(
            "Paused",
            f"{reference.kind} is paused, so its controller ignores it",
            "the person or program that paused it",
            f"metadata.annotations[{PAUSED_ANNOTATION}]",
            command=f"kubectl annotate {reference.words} {PAUSED_ANNOTATION}-",
        )


def without_controller(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Its controller does not run."""
    reference = subject.reference
    controller = facts.controller_of(reference)
    if controller is None or controller.runs:
        return
    extensions = [
        (extension, condition)
        for extension in facts.of("ExtensionConfig")
        if (condition := extension.unmet("Discovered")) is not None
    ]
    if controller.label == "cluster-api" and extensions:
        extension, condition = extensions[0]
        yield reported(
            condition,
            "ExtensionBlocksCore",
            "the administrator of the extension",
            text=f"Cluster API's core waits at its start for this extension: {condition.text}",
            about=extension.reference,
        )
        return
    yield Finding(
        "ControllerNotRunning",
        f"the controller {controller.label} does not run: {controller.text}",
        "the administrator of the management cluster",
        command=controller.command or describe(controller.reference),
        about=controller.reference,
    )


def refused(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """A webhook, an admission policy, a quota or RBAC refuses a controller's request."""
    observations: list[Observation] = [
        condition
        for condition in (*subject.conditions, *subject.former_conditions)
        if condition.status != "True" or condition.type in ACTIVITIES
    ]
    if (warning := facts.warnings.get(subject.reference)) is not None:
        observations.append(warning)
    for observed in observations:
        if found := list(refusals(subject, observed, facts)):
            yield from found
            return


def refusals(subject: Subject, observed: Observation, facts: Facts) -> Iterator[Finding]:
    """The refusal in the message of a condition or an event."""
    message, namespace = observed.text, subject.reference.namespace
    if found := WEBHOOK.search(message):
        name = found["name"]
        yield reported(
            observed,
            "WebhookFails",
            "the administrator of the webhook",
            text=f"the webhook {name} does not answer: {message}",
            about=Reference(kind="Webhook", name=name),
            command="kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
        )
    elif found := (_DENIED.search(message) or _POLICY.search(message)):
        kind = "Webhook" if found.re is _DENIED else "ValidatingAdmissionPolicy"
        yield reported(
            observed,
            "Denied",
            "the author of the rejected field",
            about=Reference(kind=kind, name=found["name"]),
            command=f"kubectl get {subject.reference.words} -o yaml",
        )
    elif found := _QUOTA.search(message):
        quota = Reference(kind="ResourceQuota", name=found["name"], namespace=namespace)
        yield reported(
            observed,
            "QuotaExceeded",
            "the administrator of the namespace",
            about=quota,
        )
    elif found := _FORBIDDEN.search(message):
        controller = facts.controller_of(subject.reference)
        yield reported(
            observed,
            "Forbidden",
            "the administrator of the management cluster",
            about=controller.reference if controller else None,
            command=f"kubectl auth can-i {found['verb']} {found['kind']} --as {found['user']}",
        )
    elif found := _SECRET.search(message):
        secret = Reference(kind="Secret", name=found["name"] or found["ours"], namespace=namespace)
        yield reported(
            observed,
            "SecretMissing",
            "the person or program that creates the Secret",
            about=secret,
            command=f"kubectl get {secret.words}",
        )


def foreign_finalizer(subject: Subject, _facts: Facts) -> Iterator[Finding]:
    """An object that is being deleted waits for a finalizer that Cluster API does not own."""
    others = [name for name in subject.finalizers if _OURS not in name.partition("/")[0]]
    if subject.is_deleting and others:
        yield Finding(
            "Finalizer",
            f"the deletion waits for the finalizer {', '.join(others)}",
            f"the owner of the finalizer {others[0]}",
            "metadata.finalizers",
            command=describe(subject.reference),
        )


def own_finalizer(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """An object that is being deleted waits for its controller."""
    if subject.is_deleting and subject.finalizers:
        yield Finding(
            "Finalizer",
            f"the deletion waits for the finalizer {', '.join(subject.finalizers)}",
            facts.responsible_for(subject.reference),
            "metadata.finalizers",
            command=describe(subject.reference),
        )


def controllers_word(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """The condition with which the object's controller explains the object."""
    conditions = subject.conditions
    active = [each for each in conditions if each.type in ACTIVITIES and each.status == "True"]
    unmet = [
        each
        for each in conditions
        if each.status == "False" and each.type not in {*ACTIVITIES, *SUMMARIES, "Paused"}
    ]
    summary = [each for each in conditions if each.type in SUMMARIES and each.status != "True"]
    chosen = next(
        (each for each in (*unmet, *active, *summary) if each.message),
        None,
    )
    reference = subject.reference
    responsible = facts.responsible_for(reference)
    if chosen is not None:
        yield reported(chosen, "Reported", responsible, command=describe(reference))
    elif (warning := facts.warnings.get(reference)) is not None:
        yield reported(warning, "Reported", responsible, command=describe(reference))


def unknown(subject: Subject, facts: Facts) -> Finding:
    """No rule explains the object."""
    reference = subject.reference
    if not subject.conditions:
        text = "its controller has not reported any condition yet"
    else:
        text = "no condition or event explains why it is not as desired"
    return Finding(
        "Unknown",
        text,
        facts.responsible_for(reference),
        command=describe(reference),
    )


def waiting_part(
    owner: Subject, facts: Facts, path: Sequence[str], condition_type: str
) -> Finding | None:
    """An object that another one refers to is missing, or not as desired."""
    reference = owner.refers_to(*path)
    if reference is None:
        return None
    if facts.lacks(reference):
        return missing(reference, facts, ".".join(path))
    condition, part = owner.unmet(condition_type), facts.objects.get(reference)
    if condition is None and (part is None or part.is_settled):
        return None
    return waits(reference, facts.responsible_for(reference), condition)


def missing(
    reference: Reference, facts: Facts, field: str, *, is_template: bool = False
) -> Finding:
    """A referenced object or template does not exist."""
    if reference in facts.unserved:
        return Finding(
            "KindNotServed",
            f"the API server has no kind {reference.kind} in {reference.group}: the provider is"
            " not installed",
            "the administrator of the management cluster",
            field,
            command="clusterctl init --help",
            about=reference,
        )
    return Finding(
        "TemplateMissing" if is_template else "ObjectMissing",
        f"{reference} does not exist",
        f"the person or program that creates {'the template' if is_template else 'it'}",
        field,
        command=f"kubectl get {reference.words}",
        about=reference,
    )
