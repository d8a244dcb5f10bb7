"""The fields that Cluster API reads of a provider's kinds, by contract and its version."""

from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from capelin.api import Unstructured

from capelin_conformance.providers.rules import Contract

FieldType = Literal["string", "integer", "boolean", "array", "object"]


@dataclass(frozen=True, slots=True)
class ContractField:
    """A field of a contract."""

    path: str
    type: FieldType
    required: bool = False


def _required(path: str, type_: FieldType) -> ContractField:
    return ContractField(path, type_, required=True)


_ENDPOINT: Final = (
    ContractField("spec.controlPlaneEndpoint", "object"),
    ContractField("spec.controlPlaneEndpoint.host", "string"),
    ContractField("spec.controlPlaneEndpoint.port", "integer"),
)
_CONDITIONS: Final = ContractField("status.conditions", "array")
_PROVISIONED: Final = _required("status.initialization.provisioned", "boolean")
_READY: Final = _required("status.ready", "boolean")
_REPLICAS: Final = ("replicas", "readyReplicas")

_CONTROL_PLANE: Final = (
    *_ENDPOINT,
    _CONDITIONS,
    ContractField("spec.version", "string"),
    ContractField("spec.replicas", "integer"),
    ContractField("status.version", "string"),
    ContractField("status.selector", "string"),
    ContractField("status.externalManagedControlPlane", "boolean"),
    *(ContractField(f"status.{name}", "integer") for name in _REPLICAS),
)
_MACHINE: Final = (
    _required("spec.providerID", "string"),
    _CONDITIONS,
    ContractField("status.addresses", "array"),
    ContractField("status.failureDomain", "string"),
)
_POOL: Final = (
    _required("spec.providerIDList", "array"),
    _required("status.replicas", "integer"),
    _CONDITIONS,
    ContractField("spec.providerID", "string"),
    ContractField("status.infrastructureMachineKind", "string"),
)
_BOOTSTRAP: Final = (_required("status.dataSecretName", "string"), _CONDITIONS)

_FIELDS: Final[dict[str, dict[Contract, tuple[ContractField, ...]]]] = {
    "v1beta2": {
        "control-plane": (
            _required("status.initialization.controlPlaneInitialized", "boolean"),
            *_CONTROL_PLANE,
            ContractField("status.versions", "array"),
            ContractField("status.availableReplicas", "integer"),
            ContractField("status.upToDateReplicas", "integer"),
        ),
        "infra-cluster": (
            _PROVISIONED,
            *_ENDPOINT,
            _CONDITIONS,
            ContractField("status.failureDomains", "array"),
        ),
        "infra-machine": (_PROVISIONED, *_MACHINE),
        # Core's MachinePool controller still reads this field in both versions of the contract.
        "machine-pool": (_PROVISIONED, *_POOL, ContractField("status.ready", "boolean")),
        "bootstrap": (
            _required("status.initialization.dataSecretCreated", "boolean"),
            *_BOOTSTRAP,
        ),
    },
    "v1beta1": {
        "control-plane": (
            _required("status.initialized", "boolean"),
            *_CONTROL_PLANE,
            ContractField("status.updatedReplicas", "integer"),
            ContractField("status.unavailableReplicas", "integer"),
        ),
        "infra-cluster": (
            _READY,
            *_ENDPOINT,
            _CONDITIONS,
            ContractField("status.failureDomains", "object"),
        ),
        "infra-machine": (_READY, *_MACHINE),
        "machine-pool": (_READY, *_POOL),
        "bootstrap": (_READY, *_BOOTSTRAP),
    },
}


def contract_fields(contract: Contract, generation: str) -> tuple[ContractField, ...]:
    """The fields of a contract's version."""
    return _FIELDS[generation].get(contract, ())


def milestone_path(contract: Contract, generation: str) -> str:
    """The field that shows that an object is provisioned, initialized or created."""
    fields = contract_fields(contract, generation)
    return next(f.path for f in fields if f.required and f.type == "boolean")


def type_problem(schema: Unstructured, field: ContractField) -> str | None:
    """Why a schema does not fit a field of the contract."""
    actual = schema.get("type")
    # Where unknown fields are preserved, a schema may have no type.
    if actual in {None, field.type}:
        return None
    return f"{field.path} is of type {actual}, not {field.type}"


def value_at(obj: Unstructured, path: str) -> object:
    """The value of a field; None if the object does not have it."""
    value: Any = obj
    for name in path.split("."):
        if not isinstance(value, dict):
            return None
        value = cast("Unstructured", value).get(name)
    return value


def mapping_at(obj: Unstructured | None, path: str) -> Unstructured:
    """The mapping in a field, or an empty one if the field has another type."""
    value = value_at(obj or {}, path)
    return cast("Unstructured", value) if isinstance(value, dict) else {}


def items_at(obj: Unstructured | None, path: str) -> list[Any]:
    """The items of a list in a field. None if the field has another type."""
    value = value_at(obj or {}, path)
    return cast("list[Any]", value) if isinstance(value, list) else []
