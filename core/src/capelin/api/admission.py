"""Admission policies, which the API server evaluates itself."""

from collections.abc import Mapping, Sequence

from capelin.api.objects import Unstructured


def admission_policy(
    name: str,
    rules: Sequence[Unstructured],
    validations: Sequence[Unstructured],
    more: Mapping[str, object] | None = None,
    binding: Mapping[str, object] | None = None,
) -> list[Unstructured]:
    """A ValidatingAdmissionPolicy that fails closed, and its binding.

    Args:
        name: The name of both.
        rules: The requests that it is for, as resource rules.
        validations: Its expressions, with messages.
        more: Other fields of the policy's spec, or other values.
        binding: Other fields of the binding's spec.
    """
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": list(rules)},
        "validations": list(validations),
        **(more or {}),
    }
    bound = {"policyName": name, "validationActions": ["Deny"], **(binding or {})}
    return [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": name},
            "spec": content,
        }
        for kind, content in (
            ("ValidatingAdmissionPolicy", spec),
            ("ValidatingAdmissionPolicyBinding", bound),
        )
    ]
