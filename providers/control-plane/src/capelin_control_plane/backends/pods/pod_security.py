"""The restricted Pod Security Standard, for pods that users patch. Pure.

Patched pods must also stay without identity: no service account token, no requests by the kubelet
to other hosts. The standard allows some of that, so these rules are stricter.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from capelin_control_plane.backends.pods.names import fields_at, items_at, value_at

_REFUSED: Final = (
    "ephemeralContainers",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostUsers",
    "nodeName",
)
_VOLUMES: Final = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
_PROJECTED_SOURCES: Final = frozenset({"configMap", "downwardAPI", "secret"})
_SELINUX_TYPES: Final = frozenset(
    {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
)
_PROFILES: Final = frozenset({"RuntimeDefault", "Localhost"})
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_HOOKS: Final = ("postStart", "preStop")
_APPARMOR_ANNOTATION: Final = "container.apparmor.security.beta.kubernetes.io/"
_SECCOMP_ANNOTATIONS: Final = (
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
)


def pod_problems(
    pod: Mapping[str, Any],
    annotations: Mapping[str, Any] = {},
    generated: Mapping[str, Any] = {},
) -> Iterator[str]:
    """Violations of the standard.

    Args:
        pod: The spec of the pod.
        annotations: Its annotations.
        generated: The spec without patches. Its volumes are allowed: they may be folders of the
            node that an administrator lists.
    """
    yield from _annotation_problems(annotations)
    for field in _REFUSED:
        if pod.get(field):
            yield f"{field} is not allowed"
    yield from _identity_problems(pod)
    yield from _volume_problems(pod, items_at(generated, "volumes"))
    context = fields_at(pod, "securityContext")
    if context.get("sysctls"):
        yield "sysctls are not allowed"
    yield from _context_problems(context)
    folders = {
        volume["name"] for volume in items_at(generated, "volumes") if volume.get("hostPath")
    }
    for field in ("containers", "initContainers"):
        for container in items_at(pod, field):
            for problem in (
                *_container_problems(container, context),
                *_mount_problems(container, folders),
            ):
                yield f"container {container.get('name')}: {problem}"


def _identity_problems(pod: Mapping[str, Any]) -> Iterator[str]:
    if pod.get("automountServiceAccountToken") is not False:
        yield "automountServiceAccountToken must stay false"
    for field in ("serviceAccountName", "serviceAccount"):
        if pod.get(field) not in {None, "", "default"}:
            yield f"{field} is not allowed"
    if str(pod.get("priorityClassName") or "").startswith("system-"):
        yield "priorityClassName: classes of the system are not allowed"


def _annotation_problems(annotations: Mapping[str, Any]) -> Iterator[str]:
    for name, value in annotations.items():
        profile = str(value)
        if (
            name.startswith(_APPARMOR_ANNOTATION)
            and profile not in {"", "runtime/default"}
            and not profile.startswith("localhost/")
        ):
            yield f"the annotation {name} must be runtime/default or localhost/..."
        if name.startswith(_SECCOMP_ANNOTATIONS):
            yield f"the annotation {name} is not allowed: write securityContext.seccompProfile"


def _volume_problems(
    pod: Mapping[str, Any], generated: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    for volume in items_at(pod, "volumes"):
        if volume in generated:
            continue
        if others := volume.keys() - {"name"} - _VOLUMES:
            yield f"a volume of the type {', '.join(sorted(others))} is not allowed"
        for source in items_at(volume, "projected", "sources"):
            if "serviceAccountToken" in source:
                yield "a token of a service account is not allowed"
            elif others := source.keys() - _PROJECTED_SOURCES:
                yield f"a projected {', '.join(sorted(others))} is not allowed"


def _mount_problems(container: Mapping[str, Any], folders: Collection[str]) -> Iterator[str]:
    for mount in items_at(container, "volumeMounts"):
        if mount.get("name") in folders and mount.get("readOnly") is not True:
            yield f"the volume {mount['name']} is a folder of the node: readOnly must stay true"


def _container_problems(container: Mapping[str, Any], of_pod: Mapping[str, Any]) -> Iterator[str]:
    own = fields_at(container, "securityContext")
    if own.get("privileged") or own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation must be false, and privileged is not allowed"
    if "ALL" not in (value_at(own, "capabilities", "drop") or ()):
        yield "all capabilities must be dropped"
    if not set(value_at(own, "capabilities", "add") or ()) <= {"NET_BIND_SERVICE"}:
        yield "no capability but NET_BIND_SERVICE may be added"
    if any(port.get("hostPort") or port.get("hostIP") for port in items_at(container, "ports")):
        yield "hostPort and hostIP are not allowed"
    if own.get("procMount") not in {None, "Default"}:
        yield "procMount is not allowed"
    for handler in (
        *(fields_at(container, probe) for probe in _PROBES),
        *(fields_at(container, "lifecycle", hook) for hook in _HOOKS),
    ):
        for action in ("httpGet", "tcpSocket"):
            if value_at(handler, action, "host"):
                yield "the host of a probe or hook is not allowed: it is the pod"
    # A null in the container is not a value: that of the pod counts.
    yield from _context_problems({**of_pod, **_without_nulls(own)})


def _without_nulls(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _context_problems(context: Mapping[str, Any]) -> Iterator[str]:
    if context.get("runAsNonRoot") is not True or context.get("runAsUser") == 0:
        yield "it must not run as root"
    if value_at(context, "seccompProfile", "type") not in _PROFILES:
        yield "seccompProfile must be RuntimeDefault or Localhost"
    if value_at(context, "appArmorProfile", "type") not in {None, *_PROFILES}:
        yield "appArmorProfile must be RuntimeDefault or Localhost"
    options = fields_at(context, "seLinuxOptions")
    if (options.get("type") or "") not in _SELINUX_TYPES:
        yield f"seLinuxOptions.type {options['type']} is not allowed"
    if options.get("user") or options.get("role"):
        yield "seLinuxOptions.user and role are not allowed"
    if context.get("windowsOptions"):
        yield "windowsOptions are not allowed"
