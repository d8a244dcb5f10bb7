"""The bootstrap data of a machine, which its bootstrap provider writes to a Secret."""

from capelin.api.capi import MachinePool
from capelin.api.core import Secret
from capelin.client import Client
from capelin.contract import BOOTSTRAP_DATA_KEY
from capelin.provider import Blocked

from capelin_machine_pool.bootstrap import (
    CloudConfig,
    CloudConfigError,
    instance_metadata,
    read_cloud_config,
)
from capelin_machine_pool.desired import Instance
from capelin_machine_pool.plan import SOON
from capelin_machine_pool.reasons import Reason


async def bootstrap_secret(instance: Instance, management: Client) -> str:
    """The name of the Secret with the bootstrap data.

    Raises:
        Blocked: The bootstrap provider has not created it yet.
    """
    name = instance.bootstrap_secret
    if not name and instance.pool is not None:
        pool = await management.find(MachinePool, instance.pool, instance.key.namespace)
        name = pool.spec.template.spec.bootstrap.data_secret_name if pool else None
    if not name:
        message = "its bootstrap data do not exist yet"
        raise Blocked(Reason.WAITING_FOR_BOOTSTRAP_DATA, message, retry_seconds=SOON)
    return name


async def bootstrap_config(
    management: Client, namespace: str, secret: str, *, machine: str, uid: str, provider_id: str
) -> CloudConfig:
    """The bootstrap data of a machine.

    Args:
        management: The management cluster.
        namespace: The namespace of the machine.
        secret: The name of the Secret.
        machine: The name of the machine.
        uid: The identifier of its instance.
        provider_id: The provider ID of its Node.

    Raises:
        Blocked: They are missing, or not supported.
    """
    found = await management.find(Secret, secret, namespace)
    data = None if found is None else found.data.get(BOOTSTRAP_DATA_KEY)
    if data is None:
        message = f"the Secret {secret} with the bootstrap data does not exist"
        raise Blocked(Reason.INVALID_BOOTSTRAP_DATA, message)
    metadata = instance_metadata(hostname=machine, instance_id=uid, provider_id=provider_id)
    try:
        return read_cloud_config(data, metadata)
    except CloudConfigError as error:
        raise Blocked(Reason.INVALID_BOOTSTRAP_DATA, str(error)) from None
