"""The provider as Cluster API installs it: kinds, permissions, manager."""

from importlib.metadata import version

from capelin.api import Unstructured
from capelin.provider import Provider, admission_policy, may_patch

from capelin_control_plane.api import CapelinControlPlane, CapelinControlPlaneTemplate
from capelin_control_plane.backends.pods.names import MANAGED_BY, MANAGED_BY_LABEL
from capelin_control_plane.desired.control_plane import PROGRAMS
from capelin_control_plane.keys.secrets import CREATED_ANNOTATION
from capelin_control_plane.reconciler import MANAGER, CapelinControlPlaneReconciler

LABEL = "control-plane-capelin"
READER = "capi-kubeadm-bootstrap-system:capi-kubeadm-bootstrap-manager"
"""The service account of the kubeadm bootstrap provider."""
_IS_SERVICE_ACCOUNT = "request.userInfo.username.startsWith('system:serviceaccount:')"


def provider() -> Provider:
    """The provider, for environments that install it."""
    return Provider.of(
        "capelin",
        "ControlPlaneProvider",
        version=f"v{version('capelin-control-plane')}",
        module="capelin_control_plane",
        manager=MANAGER,
        reconcilers=[CapelinControlPlaneReconciler],
        kinds=[CapelinControlPlaneTemplate],
        programs=PROGRAMS,
        objects=[*read_by_bootstrap_provider(), *confinement(), *operations_policy()],
    )


def read_by_bootstrap_provider() -> list[Unstructured]:
    """The kubeadm bootstrap provider's permission to read the version of a control plane.

    It reads every control plane kind, but its own role covers only KubeadmControlPlane, and it does
    not aggregate others.
    """
    # clusterctl removes cluster roles only if their names begin with the provider's namespace.
    name = f"{LABEL}-system-read-by-kubeadm-bootstrap"
    group = "rbac.authorization.k8s.io"
    resource = CapelinControlPlane.resource
    rule = {"apiGroups": [resource.group], "resources": [resource.plural], "verbs": ["get"]}
    # As a user: clusterctl puts the provider's own namespace into every subject that has one.
    reader = {
        "kind": "User",
        "apiGroup": group,
        "name": f"system:serviceaccount:{READER}",
    }
    return [
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": [rule],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [reader],
        },
    ]


def operations_policy() -> list[Unstructured]:
    """Keeps users from requesting operations through the topology of a Cluster.

    Cluster API copies the annotations of `spec.topology.controlPlane` to the control plane.
    """
    clusters = {
        "apiGroups": ["cluster.x-k8s.io"],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["clusters"],
    }
    resource = CapelinControlPlane.resource
    names = "restore|capelin-.+|.+-(after|before|requested)"
    annotations = "spec.?topology.?controlPlane.?metadata.?annotations"
    may_operate = may_patch(f"'{resource.group}'", f"'{resource.plural}'", "operations")
    validation = {
        "expression": f"object.{annotations}.orValue({{}}).all(key,"
        f" !key.matches('^{resource.group.replace('.', '[.]')}/({names})$')"
        f" || oldObject != null && object.{annotations}[?key] == oldObject.{annotations}[?key])"
        f" || {may_operate}",
        "message": "spec.topology.controlPlane has an annotation that is an operation: it needs the"
        " right to patch the subresource operations of capelincontrolplanes",
        "reason": "Forbidden",
    }
    return admission_policy(f"{LABEL}-operations", [clusters], [validation])


def confinement() -> list[Unstructured]:
    """Confines the provider to objects of control planes, which its permissions cannot name.

    Administrators may run programs in pods, which the provider may not, and keep their permissions.
    No other controller of control planes may forward ports.
    """
    resource = CapelinControlPlane.resource
    is_controller = may_patch(f"'{resource.group}'", f"'{resource.plural}'")
    may_execute, may_forward = (
        f"authorizer.group('').resource('pods').subresource('{subresource}')"
        ".namespace(request.namespace).check('create').allowed()"
        for subresource in ("exec", "portforward")
    )
    conditions = [
        {"name": "a-service-account", "expression": _IS_SERVICE_ACCOUNT},
        {"name": "a-controller-of-control-planes", "expression": is_controller},
        {"name": "a-forwarder-of-ports", "expression": may_forward},
        {"name": "no-administrator", "expression": f"!{may_execute}"},
    ]

    def policy(
        name: str, operations: list[str], resources: dict[str, list[str]], expression: str, of: str
    ) -> list[Unstructured]:
        rules: list[Unstructured] = [
            {
                "apiGroups": [group],
                "apiVersions": ["v1"],
                "operations": operations,
                "resources": names,
            }
            for group, names in resources.items()
        ]
        message = f"the control plane provider {of} only"
        validation = {"expression": expression, "message": message, "reason": "Forbidden"}
        more = {"matchConditions": conditions}
        return admission_policy(f"{LABEL}-{name}", rules, [validation], more)

    def is_own(of: str) -> str:
        return f"{of}.metadata.?labels[?'{MANAGED_BY_LABEL}'].orValue('') == '{MANAGED_BY}'"

    pod = "dyn(object).spec.?template.?spec.orValue(dyn(object).spec)"
    old = "oldObject.metadata.?{}.orValue({})"
    return [
        *policy(
            "port-forward",
            ["CONNECT"],
            {"": ["pods/portforward"]},
            "request.name.matches('-etcd-[0-9]$')",
            "forwards ports of members of etcd",
        ),
        *policy(
            "workloads",
            ["CREATE", "UPDATE"],
            {"": ["pods"], "apps": ["deployments", "statefulsets"]},
            f"{is_own('object')} && {pod}.?serviceAccountName.orValue('default') == 'default'"
            f" && !{pod}.?automountServiceAccountToken.orValue(true)",
            "runs its own pods, without a token of a service account,",
        ),
        *policy(
            "secrets",
            ["CREATE", "UPDATE"],
            {"": ["secrets"]},
            "object.?type.orValue('') != 'kubernetes.io/service-account-token'"
            f" && (oldObject == null || {is_own('oldObject')}"
            f" || '{CREATED_ANNOTATION}' in {old.format('annotations', '{}')}"
            f" || {old.format('ownerReferences', '[]')}.exists(o, o.kind == '{resource.kind}'))",
            "changes Secrets of control planes",
        ),
    ]
