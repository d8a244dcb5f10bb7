"""The replica's copies of policies, results, namespaces and Clusters.

They follow the API server, a moment late, and contain only what hooks need.
"""

import asyncio
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal, TypeVar

from capelin.api import BaseObject, ObjectMeta, Resource
from capelin.api.core import Namespace
from capelin.client import Client, ClientError, Event, Expired, UnreadableObject
from capelin.controller import ObjectKey

from capelin_lifecycle.api.names import HookName, PolicyKind
from capelin_lifecycle.api.policies import (
    POLICY_TYPES,
    ClusterLifecyclePolicy,
    LifecyclePolicy,
    Policy,
)
from capelin_lifecycle.api.results import LifecycleResult
from capelin_lifecycle.policies.clusters import KnownCluster, Occurrence, PolicyKey, WholeCluster
from capelin_lifecycle.policies.selection import KnownPolicy
from capelin_lifecycle.policies.verdict import Verdict

log = logging.getLogger(__name__)

ObjectT = TypeVar("ObjectT", bound=BaseObject)
KeyT = TypeVar("KeyT")
Subject = Literal["policy", "result", "cluster", "registration"]
Listener = Callable[[Subject, ObjectKey, PolicyKey | None], None]
"""Called with the subject of a change, its name, and the policy that it belongs to."""

_POLICIES: Final[Mapping[Resource, PolicyKind]] = {
    policy.resource: kind for kind, policy in POLICY_TYPES.items()
}
_FOLLOWED: Final[tuple[type[BaseObject], ...]] = (
    *POLICY_TYPES.values(),
    LifecycleResult,
    Namespace,
    WholeCluster,
)
_RETRY_SECONDS: Final = 2.0
_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class KnownResult:
    """A result as the extension works with it."""

    key: ObjectKey
    id: str
    policy: PolicyKey
    cluster: str
    cluster_uid: str | None
    """Uid of the Cluster that owns it. None after a restore."""
    hook: HookName
    step: tuple[str, str]
    order: int
    target: str | None
    view: Verdict | None
    since: datetime | None
    called: datetime | None = None
    topology: str | None = None
    """Hash of the topology that an approval is for."""

    @property
    def cluster_key(self) -> ObjectKey:
        return ObjectKey(self.key.namespace, self.cluster)

    @property
    def occurrence(self) -> tuple[ObjectKey, HookName, tuple[str, str]]:
        """The same for results of several policies for one occurrence of a hook."""
        return self.cluster_key, self.hook, self.step

    def is_about(self, cluster_uid: str) -> bool:
        """Whether it is about this Cluster of its name, and not about an earlier one."""
        return self.cluster_uid in (None, cluster_uid)

    def is_for(self, topology: str) -> bool:
        """Whether it holds for a topology."""
        return self.topology in (None, topology)


@dataclass(slots=True)
class Store:
    """The copies, and the listeners of changes."""

    check: Callable[[Policy], str | None]
    """Why a policy cannot be used."""
    namespaces: dict[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    _policies: dict[PolicyKey, KnownPolicy] = field(default_factory=dict[PolicyKey, KnownPolicy])
    _by_hook: dict[str, tuple[KnownPolicy, ...]] = field(
        default_factory=dict[str, tuple[KnownPolicy, ...]]
    )
    _results: dict[ObjectKey, KnownResult] = field(default_factory=dict[ObjectKey, KnownResult])
    _clusters: dict[str, KnownCluster] = field(default_factory=dict[str, KnownCluster])
    _uids: dict[ObjectKey, str] = field(default_factory=dict[ObjectKey, str])
    """Uids of the Clusters, by their names."""
    _versions: dict[str, int] = field(default_factory=dict[str, int])
    """Resource versions of the Clusters, by their uids: they change more often than the copies."""
    _of_policy: defaultdict[PolicyKey, set[ObjectKey]] = field(
        default_factory=lambda: defaultdict[PolicyKey, set[ObjectKey]](set)
    )
    _of_cluster: defaultdict[ObjectKey, set[ObjectKey]] = field(
        default_factory=lambda: defaultdict[ObjectKey, set[ObjectKey]](set)
    )
    synced: set[str] = field(default_factory=set[str])
    """Kinds that were read, and are followed."""
    _listeners: list[Listener] = field(default_factory=list[Listener])
    _gone: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    """Uids of the Clusters that were deleted last."""
    unreadable: dict[tuple[Resource, ObjectKey], UnreadableObject] = field(
        default_factory=dict[tuple[Resource, ObjectKey], UnreadableObject]
    )
    """Objects that cannot be read. The others are followed all the same."""
    problem: str | None = "the policies have not been read yet"
    """Why the policies are not known."""

    discovered: frozenset[str] | None = None
    """Names of the handlers that Cluster API calls. None until that is known."""

    @property
    def knows_policies(self) -> bool:
        """Whether the policies were read, and are followed."""
        return {*POLICY_TYPES, "Namespace"} <= self.synced

    @property
    def clusters(self) -> Mapping[str, KnownCluster] | None:
        """All Clusters by their uids. None until the replica has read them."""
        return self._clusters if "Cluster" in self.synced else None

    def cluster(self, key: ObjectKey) -> KnownCluster | None:
        uid = self._uids.get(key)
        return None if uid is None else self._clusters.get(uid)

    def cluster_as_of(self, occurrence: Occurrence, version: str) -> KnownCluster | None:
        """The Cluster of an occurrence, if the copy is at least as new as this resource version."""
        known = self.cluster(ObjectKey(occurrence.namespace, occurrence.cluster))
        if known is None or known.occurrence.uid != occurrence.uid or not version.isdecimal():
            return None
        return known if int(version) <= self._versions.get(occurrence.uid, -1) else None

    def is_gone(self, uid: str) -> bool:
        """Whether a Cluster existed and was deleted. An unknown one may still appear."""
        return uid in self._gone

    @contextmanager
    def listening(self, listener: Listener) -> Generator[None]:
        """Have a function called on every change, for as long as the block lasts."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    async def repeat(self, step: Callable[[], Awaitable[float | None]]) -> None:
        """Take a step now, when policies change, and after the seconds that the last one named."""
        changed = asyncio.Event()

        def listen(subject: Subject, *_: object) -> None:
            if subject == "policy":
                changed.set()

        with self.listening(listen):
            while True:
                changed.clear()
                seconds = await step()
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await changed.wait()

    def policies(self, hook: str | None = None) -> Sequence[KnownPolicy]:
        """All policies, or those of a hook."""
        if hook is None:
            return tuple(self._policies.values())
        return self._by_hook.get(hook, ())

    def policy(self, kind: PolicyKind, namespace: str | None, name: str) -> KnownPolicy | None:
        return self._policies.get(PolicyKey(kind, namespace, name))

    def may_concern(self, hook: str, namespace: str) -> bool:
        """Whether a policy of this hook is for Clusters of a namespace."""
        return any(policy.namespace in (None, namespace) for policy in self.policies(hook))

    def result(self, key: ObjectKey) -> KnownResult | None:
        return self._results.get(key)

    def results_of_policy(self, policy: PolicyKey) -> list[KnownResult]:
        return [self._results[key] for key in self._of_policy.get(policy, ())]

    def results_of_cluster(self, cluster: ObjectKey) -> list[KnownResult]:
        """The results of the Clusters of a name: of the one that exists, and of earlier ones."""
        return [self._results[key] for key in self._of_cluster.get(cluster, ())]

    def discover(self, handlers: frozenset[str]) -> None:
        """Note the names of the handlers that Cluster API calls."""
        if handlers != self.discovered:
            self.discovered = handlers
            for key in list(self._policies):
                self._tell("registration", ObjectKey(key.namespace or "", key.name), key)

    # Following

    async def follow(self, client: Client) -> None:
        """Keep the copies up to date, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for kind in _FOLLOWED:
                tasks.create_task(self.follow_kind(client, kind))

    async def follow_kind(self, client: Client, kind: type[BaseObject]) -> None:
        """Keep the copies of one kind up to date, until cancelled."""
        name = kind.resource.kind
        known: dict[ObjectKey, str] = {}

        def cannot_read(event: Event[UnreadableObject]) -> None:
            self._cannot_read(kind, known, event)

        while True:
            try:
                version = await self._read_all(client, kind, known)
                self.synced.add(name)
                async for event in client.watch(kind, since=version, on_unreadable=cannot_read):
                    _remember(known, event)
                    self.unreadable.pop((kind.resource, _key(event.object)), None)
                    self.note(event.object, gone=event.type == "DELETED")
            except Expired:
                continue
            except ClientError as error:
                # Keep the last copies: they are better than nothing.
                if name not in self.synced and "Policy" in name:
                    self.problem = f"the policies cannot be read: {error}"
                log.warning("%s cannot be followed: %s", kind.resource.plural, error)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _read_all(
        self,
        client: Client,
        kind: type[BaseObject],
        known: dict[ObjectKey, str],
    ) -> str:
        """Read all objects of a kind. Returns the version to watch from."""
        listing = await client.list(kind)
        now = {_key(obj): obj.uid for obj in listing.items}
        # Unreadable objects still exist.
        now |= {ObjectKey(*entry.key): entry.uid for entry in listing.unreadable}
        for key, uid in known.items():
            if now.get(key) != uid:
                self.note(_gone(kind, key, uid), gone=True)
        for entry in [entry for entry in self.unreadable if entry[0] == kind.resource]:
            del self.unreadable[entry]
        for obj in listing.items:
            self.note(obj)
        for unreadable in listing.unreadable:
            self._note_unreadable(unreadable)
        known.clear()
        known.update(now)
        return listing.resource_version

    def _cannot_read(
        self,
        kind: type[BaseObject],
        known: dict[ObjectKey, str],
        event: Event[UnreadableObject],
    ) -> None:
        entry, key = event.object, ObjectKey(*event.object.key)
        if event.type == "DELETED":
            known.pop(key, None)
            self.unreadable.pop((entry.resource, key), None)
            self.note(_gone(kind, key, entry.uid), gone=True)
        else:
            known[key] = entry.uid
            self._note_unreadable(entry)

    def note(self, obj: BaseObject, *, gone: bool = False) -> None:
        """Copy an object as it is now, or forget it."""
        match obj:
            case LifecyclePolicy() | ClusterLifecyclePolicy():
                self._policy_changed(obj, gone=gone)
            case LifecycleResult():
                self._result_changed(obj, gone=gone)
            case Namespace() if gone:
                self.namespaces.pop(obj.name, None)
            case Namespace():
                self.namespaces[obj.name] = obj.metadata.labels
            case WholeCluster():
                self._cluster_changed(obj, gone=gone)
            case _:
                raise TypeError(f"no {obj.resource.plural} are followed")

    def _note_unreadable(self, entry: UnreadableObject) -> None:
        """Continue without an object. A policy that was known still holds up its Clusters."""
        key = ObjectKey(*entry.key)
        self.unreadable[(entry.resource, key)] = entry
        if entry.resource not in _POLICIES:
            return
        policy = PolicyKey(_POLICIES[entry.resource], entry.namespace or None, entry.name)
        if (before := self._policies.get(policy)) is not None:
            problem = f"it cannot be read: {entry.reason}"
            self._policies[policy] = replace(before, problem=problem)
            self._index_policies()
        self._tell("policy", key, policy)

    def _index_policies(self) -> None:
        by_hook: defaultdict[str, list[KnownPolicy]] = defaultdict(list)
        for known in self._policies.values():
            by_hook[known.spec.hook].append(known)
        self._by_hook = {hook: tuple(known) for hook, known in by_hook.items()}

    def _policy_changed(self, policy: Policy, /, *, gone: bool) -> None:
        key = PolicyKey(_POLICIES[policy.resource], policy.namespace, policy.name)
        before = self._policies.get(key)
        if gone or policy.metadata.deletion_timestamp is not None:
            self._policies.pop(key, None)
        else:
            self._policies[key] = KnownPolicy.of(policy, self.check(policy))
        if before != self._policies.get(key):
            self._index_policies()
            self._tell("policy", _key(policy), key)

    def _result_changed(self, result: LifecycleResult, /, *, gone: bool) -> None:
        key = _key(result)
        before = self._results.pop(key, None)
        if before is not None:
            _discard(self._of_policy, before.policy, key)
            _discard(self._of_cluster, before.cluster_key, key)
        known = before
        if not gone and result.metadata.deletion_timestamp is None:
            known = self._results[key] = _known(key, result)
            self._of_policy[known.policy].add(key)
            self._of_cluster[known.cluster_key].add(key)
        if known is not None:
            self._tell("result", key, known.policy)

    def _cluster_changed(self, cluster: WholeCluster, /, *, gone: bool) -> None:
        key = _key(cluster)
        if gone:
            self._clusters.pop(cluster.uid, None)
            self._versions.pop(cluster.uid, None)
            if self._uids.get(key) == cluster.uid:
                del self._uids[key]
            self._gone[cluster.uid] = None
            if len(self._gone) > _REMEMBERED:
                self._gone.popitem(last=False)
        else:
            known = KnownCluster.of(cluster.dump())
            if (before := self._clusters.get(cluster.uid)) is None or before != known:
                self._clusters[cluster.uid] = known
            self._uids[key] = cluster.uid
            version = cluster.metadata.resource_version
            self._versions[cluster.uid] = int(version) if version.isdecimal() else -1
        if key in self._of_cluster:
            self._tell("cluster", key, None)

    def _tell(self, subject: Subject, key: ObjectKey, policy: PolicyKey | None) -> None:
        for listener in self._listeners:
            listener(subject, key, policy)


def _key(obj: BaseObject) -> ObjectKey:
    return ObjectKey(obj.namespace or "", obj.name)


def _remember(known: dict[ObjectKey, str], event: Event[BaseObject]) -> None:
    if event.type == "DELETED":
        known.pop(_key(event.object), None)
    else:
        known[_key(event.object)] = event.object.uid


def _gone(kind: type[ObjectT], key: ObjectKey, uid: str) -> ObjectT:
    metadata = ObjectMeta(name=key.name, namespace=key.namespace or None, uid=uid)
    return kind.model_construct(metadata=metadata)


def _discard(index: defaultdict[KeyT, set[ObjectKey]], of: KeyT, key: ObjectKey) -> None:
    keys = index[of]
    keys.discard(key)
    if not keys:
        del index[of]


def _known(key: ObjectKey, result: LifecycleResult) -> KnownResult:
    spec, status, record = result.spec, result.status, result.record
    policy = spec.policy
    view = None
    if record is not None and record.phase is not None:
        view = Verdict(record.phase, record.message)
    elif status is not None:
        view = Verdict(status.phase, status.message, status.retry_seconds)
    return KnownResult(
        key=key,
        id=result.id,
        policy=PolicyKey(policy.kind, policy.namespace, policy.name),
        cluster=spec.cluster.name,
        cluster_uid=result.cluster_uid,
        hook=spec.hook,
        step=(spec.from_version or "", spec.to_version or ""),
        order=spec.order,
        target=spec.target_version,
        view=view,
        since=status.since if status else spec.called,
        called=spec.called,
        topology=spec.topology,
    )
