"""The order of steps to the desired control plane."""

from dataclasses import dataclass, replace

import pytest
from capelin_control_plane.backends.processes.plan import (
    is_complete,
    needs_membership,
    next_plan,
    next_step,
)
from capelin_control_plane.desired.control_plane import Component
from capelin_control_plane.desired.instances import (
    DesiredComponents,
    Instance,
    InstanceStatus,
    Observed,
    Plan,
)
from capelin_control_plane.etcd.rules import (
    AddLearner,
    ListedMember,
    Loss,
    Membership,
    MoveLeadership,
    Promote,
    Remove,
    Replacement,
    StartLearner,
)
from hypothesis import given
from hypothesis import strategies as st

OLD, NEW = "v1.33.13", "v1.34.4"


def instance(component: Component, index: int = 0, version: str = OLD) -> Instance:
    return Instance(component, index, version, (component, version))


def components(version: str = OLD, replicas: int = 1, etcd: int = 1) -> DesiredComponents:
    return DesiredComponents(
        etcd=tuple(Instance("etcd", index, version, ("etcd",)) for index in range(etcd)),
        relay=Instance("relay", 0, version, ("relay",)),
        replicas=replicas,
        api_server=lambda index: instance("kube-apiserver", index, version),
        controllers=(
            instance("kube-controller-manager", 0, version),
            instance("kube-scheduler", 0, version),
        ),
    )


def names(plan: Plan) -> set[str]:
    return {instance.name for instance in plan.instances}


def settled(desired: DesiredComponents, plan: Plan | None = None) -> Plan:
    """The final plan if every started process becomes ready."""
    plan = plan or Plan()
    for _ in range(50):
        following = next_plan(plan, desired, names(plan))
        if following == plan:
            return plan
        plan = following
    raise AssertionError("the steps come to no end")


def test_api_servers_do_not_wait_for_etcd_to_be_ready() -> None:
    desired = components(replicas=2, etcd=3)
    first = next_plan(Plan(), desired, ())
    assert names(first) == {"etcd-0", "etcd-1", "etcd-2", "relay-0"}
    second = next_plan(first, desired, ())
    assert names(second) - names(first) == {"kube-apiserver-0", "kube-apiserver-1"}


def test_nothing_starts_before_its_data_is_restored() -> None:
    desired = components(replicas=2, etcd=3)
    assert names(next_plan(Plan(), desired, (), awaits_data=True)) == {"relay-0"}
    started = Plan((*desired.etcd, desired.relay))
    assert next_plan(started, desired, names(started), awaits_data=True) == started
    # One that serves continues until the data is replaced.
    serving = started.including(desired.api_server(0))
    assert names(next_plan(serving, desired, names(serving), awaits_data=True)) > names(serving)


def test_controllers_start_when_an_api_server_is_ready() -> None:
    desired = components()
    plan = Plan((*desired.etcd, desired.relay, desired.api_server(0)))
    assert names(next_plan(plan, desired, {"etcd-0"})) == names(plan)
    assert names(next_plan(plan, desired, names(plan))) > names(plan)


def test_steps_lead_to_the_desired_components() -> None:
    desired = components(replicas=3, etcd=3)
    assert is_complete(settled(desired), desired)


def test_an_upgrade_adds_an_api_server_before_it_removes_one() -> None:
    plan = settled(components(OLD, replicas=2))
    upgraded = next_plan(plan, components(NEW, replicas=2), names(plan))
    assert names(upgraded) - names(plan) == {"kube-apiserver-2"}
    waiting = next_plan(upgraded, components(NEW, replicas=2), names(plan))
    assert names(waiting) == names(upgraded)
    fewer = next_plan(upgraded, components(NEW, replicas=2), names(upgraded))
    assert names(upgraded) - names(fewer) == {"kube-apiserver-1"}


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_roll_does_not_wait_for_a_shutdown(
    replicas: int,
) -> None:
    plan = settled(components(OLD, replicas=replicas))
    for number in range(2 * replicas + 2):
        desired = components(f"roll {number}", replicas=replicas)
        had = {one.name for one in plan.of("kube-apiserver")}
        came: set[str] = set()
        while not is_complete(plan, desired):
            following = next_plan(plan, desired, names(plan))
            came |= {
                one.name for one in following.of("kube-apiserver") if one not in plan.instances
            }
            plan = following
        assert len(came) == replicas
        assert not came & had


def test_controllers_are_upgraded_after_the_last_api_server() -> None:
    plan = settled(components(OLD, replicas=2))
    desired = components(NEW, replicas=2)
    while any(one.version == OLD for one in plan.of("kube-apiserver")):
        assert {one.version for one in plan.of("kube-controller-manager")} == {OLD}
        plan = next_plan(plan, desired, names(plan))
    assert {one.version for one in settled(desired, plan).of("kube-scheduler")} == {NEW}


def test_a_version_that_never_becomes_ready_keeps_the_old_servers() -> None:
    old = settled(components(OLD, replicas=2))
    desired = components(NEW, replicas=2)
    plan = next_plan(old, desired, names(old))
    for _ in range(5):
        plan = next_plan(plan, desired, names(old))
    assert names(old) < names(plan)
    back = settled(components(OLD, replicas=2), plan)
    assert {one.version for one in back.instances if one.component != "etcd"} == {OLD}


def test_old_servers_stay_while_no_server_is_ready() -> None:
    old = settled(components(OLD, replicas=2))
    desired = components(NEW, replicas=2)
    stuck = next_plan(old, desired, names(old))
    assert names(next_plan(stuck, desired, {"etcd-0"})) == names(stuck)
    one_serves = next_plan(stuck, desired, names(old) - {"kube-apiserver-0"})
    assert {one.name for one in one_serves.of("kube-apiserver")} == {
        "kube-apiserver-1",
        "kube-apiserver-2",
    }


def test_repeated_fixes_do_not_accumulate_unready_servers() -> None:
    plan = Plan()
    for attempt in range(5):
        desired = components(f"attempt-{attempt}", replicas=2)
        for _ in range(5):
            plan = next_plan(plan, desired, {"etcd-0"})
        servers = plan.of("kube-apiserver")
        assert desired.api_server(servers[-1].index) in servers
        assert len(servers) <= 3
    assert is_complete(settled(components(NEW, replicas=2), plan), components(NEW, replicas=2))


def with_etcd(flag: str, members: int = 3) -> DesiredComponents:
    """Components whose etcd members have a flag."""
    members_with_flag = tuple(
        Instance("etcd", index, OLD, ("etcd", flag)) for index in range(members)
    )
    return replace(components(etcd=members), etcd=members_with_flag)


def current_members(plan: Plan, desired: DesiredComponents) -> set[str]:
    """The etcd members that run as desired."""
    return {one.name for one in plan.of("etcd") if one in desired.etcd}


def test_outdated_etcd_members_are_replaced_one_at_a_time() -> None:
    old = settled(components(etcd=3))
    changed = with_etcd("--snapshot-count=5")
    first = next_plan(old, changed, names(old))
    assert current_members(first, changed) == {"etcd-0"}
    still = next_plan(first, changed, names(old) - {"etcd-0"})
    assert current_members(still, changed) == {"etcd-0"}


def test_an_etcd_member_that_never_becomes_ready_is_fixed_before_the_others_change() -> None:
    old = settled(components(etcd=3))
    bad, fixed = with_etcd("--shoal"), with_etcd("--snapshot-count=5")
    stuck = next_plan(old, bad, names(old))
    others = names(old) - {"etcd-0"}
    first = next_plan(stuck, fixed, others)
    assert current_members(first, fixed) == {"etcd-0"}
    assert current_members(next_plan(first, fixed, others), fixed) == {"etcd-0"}
    assert current_members(next_plan(first, fixed, names(old)), fixed) == {"etcd-0", "etcd-1"}


def test_a_bad_change_restarts_no_second_etcd_member() -> None:
    old = settled(components(etcd=3))
    bad = with_etcd("--shoal")
    stuck = next_plan(old, bad, names(old))
    assert current_members(next_plan(stuck, bad, {"etcd-1"}), bad) == {"etcd-0"}
    unheard = {"etcd-1", "etcd-2"}
    assert current_members(next_plan(stuck, bad, (), recovering=unheard), bad) == {"etcd-0"}


@pytest.mark.parametrize("members", [1, 3])
def test_etcd_members_that_were_never_ready_are_fixed_together(members: int) -> None:
    # A single member does not become ready without the others.
    bad, fixed = with_etcd("--shoal", members), with_etcd("--snapshot-count=5", members)
    stuck = next_plan(Plan(), bad, ())
    assert current_members(next_plan(stuck, fixed, ()), fixed) == {one.name for one in fixed.etcd}


def test_etcd_members_that_fail_in_turn_are_all_fixed() -> None:
    # Each member fails or retries: the first fixed member has no quorum without them.
    old = settled(components(etcd=3))
    fixed = with_etcd("--snapshot-count=5")
    first = next_plan(old, fixed, (), recovering={"etcd-1", "etcd-2"})
    assert current_members(first, fixed) == {"etcd-0"}
    second = next_plan(first, fixed, (), recovering={"etcd-0", "etcd-2"})
    assert current_members(second, fixed) == {"etcd-0", "etcd-1"}
    third = next_plan(second, fixed, (), recovering={"etcd-0", "etcd-1"})
    assert current_members(third, fixed) == {"etcd-0", "etcd-1", "etcd-2"}


def test_zero_replicas_stop_api_servers_and_controllers() -> None:
    plan = settled(components(replicas=2))
    assert names(settled(components(replicas=0), plan)) == {"etcd-0", "relay-0"}


def statuses(plan: Plan, *ready: str) -> tuple[InstanceStatus, ...]:
    return tuple(
        InstanceStatus(
            name=instance.name,
            component=instance.component,
            version=instance.version,
            ready=instance.name in ready,
            current=True,
        )
        for instance in plan.instances
    )


def with_lost(desired: DesiredComponents, *lost: int, ready: set[str]) -> Observed:
    """A complete control plane, except for the lost data of an etcd member."""
    plan = settled(desired)
    return Observed(
        plan=plan,
        statuses=statuses(plan, *ready),
        desired=desired,
        losses=dict.fromkeys(lost, Loss.GONE),
        membership=Membership(members=listed_members(*range(len(desired.etcd)))),
    )


def test_a_lost_member_is_stopped_before_it_is_replaced() -> None:
    desired = components(etcd=3)
    observed = with_lost(desired, 1, ready={"etcd-0", "etcd-2"})
    first = next_step(desired, observed)
    assert "etcd-1" not in names(first.plan)
    assert first.replacement is None
    stopping = replace(
        observed,
        plan=first.plan,
        statuses=statuses(first.plan, "etcd-0", "etcd-2"),
        stopping=frozenset({"etcd-1"}),
    )
    assert next_step(desired, stopping).replacement is None
    stopped = replace(stopping, stopping=frozenset[str]())
    assert next_step(desired, stopped).replacement == Replacement(1, 0, Loss.GONE)


def test_no_ready_member_is_restarted_while_another_is_replaced() -> None:
    desired = components(etcd=3)
    observed = with_lost(desired, 1, ready={"etcd-0", "etcd-2"})
    changed = with_etcd("--snapshot-count=5")
    step = next_step(changed, observed)
    assert {member.name for member in step.plan.of("etcd")} == {"etcd-0", "etcd-2"}
    assert current_members(step.plan, changed) == set()


def test_only_api_servers_that_run_and_stay_get_connections() -> None:
    old = settled(components(OLD, replicas=2))
    observed = Observed(plan=old, statuses=statuses(old, *names(old)))
    step = next_step(components(NEW, replicas=2), observed)
    assert "kube-apiserver-2" in names(step.plan)
    assert {server.name for server in step.serving} == {"kube-apiserver-0", "kube-apiserver-1"}


@dataclass
class World:
    """Instances that become ready and die at the test's command."""

    plan: Plan
    ready: set[str]


@pytest.mark.repetitive
@given(
    replicas=st.integers(1, 5),
    wishes=st.lists(st.tuples(st.sampled_from([OLD, NEW]), st.integers(1, 5)), max_size=4),
    luck=st.lists(st.booleans(), min_size=60, max_size=60),
)
def test_number_of_servers(replicas: int, wishes: list[tuple[str, int]], luck: list[bool]) -> None:
    plan = settled(components(OLD, replicas))
    world = World(plan, names(plan))
    chances = iter(luck)
    most = replicas
    for version, replicas_now in wishes:
        desired = components(version, replicas_now)
        most = max(most, replicas_now)
        for _ in range(10):
            following = next_plan(world.plan, desired, world.ready)
            world.ready &= names(following)
            world.plan = following
            servers = {one.name for one in following.of("kube-apiserver")}
            assert servers & world.ready, "nothing answers"
            assert len(servers) <= most + 1
            for name in sorted(names(following) - world.ready):
                if next(chances, True):
                    world.ready.add(name)
    last = components(NEW, replicas)
    assert is_complete(settled(last, world.plan), last)


def with_targets(plan: Plan, *, ready: set[str], alive: set[str], serving: set[str]) -> Observed:
    return Observed(
        plan=plan,
        statuses=statuses(plan, *ready),
        alive=frozenset(alive),
        serving=frozenset(serving),
    )


@pytest.mark.parametrize(
    ("ready", "alive", "serving"),
    [
        # A ready server gets all connections.
        ({"kube-apiserver-0"}, {"kube-apiserver-0", "kube-apiserver-1"}, {"kube-apiserver-0"}),
        # After a restart of the provider, or on a busy machine, no probe has succeeded yet.
        (
            set[str](),
            {"kube-apiserver-0", "kube-apiserver-1"},
            {"kube-apiserver-0", "kube-apiserver-1"},
        ),
        (set[str](), {"kube-apiserver-1"}, {"kube-apiserver-1"}),
        (set[str](), set[str](), set[str]()),
    ],
)
def test_targets_stay_while_their_processes_are_alive(
    ready: set[str], alive: set[str], serving: set[str]
) -> None:
    plan = settled(components(replicas=2))
    before = {"kube-apiserver-0", "kube-apiserver-1"}
    observed = with_targets(plan, ready=ready, alive=alive, serving=before)
    step = next_step(components(replicas=2), observed)
    assert {server.name for server in step.serving} == serving


def test_a_server_that_never_served_gets_no_connections() -> None:
    plan = settled(components(replicas=1))
    observed = with_targets(plan, ready=set(), alive={"kube-apiserver-0"}, serving=set())
    assert next_step(components(replicas=1), observed).serving == ()


@pytest.mark.parametrize(
    ("members", "ready", "set_aside"),
    [(3, {"etcd-0", "etcd-2"}, 1), (3, {"etcd-0"}, None), (1, set[str](), None)],
)
def test_corrupt_member_is_replaced(members: int, ready: set[str], set_aside: int | None) -> None:
    desired = components(etcd=members)
    losses = {1 if members > 1 else 0: Loss.UNUSABLE}
    observed = replace(with_lost(desired, ready=ready), losses=losses)
    assert next_step(desired, observed).set_aside == set_aside


FIRST_START = ("--initial-cluster=etcd-0,etcd-1", "--initial-cluster-state=existing")


def listed_members(*indexes: int, learner: int | None = None) -> dict[int, ListedMember]:
    return {
        index: ListedMember(str(index), f"https://peer-{index}", True, index == learner)
        for index in indexes
    }


def resized(
    plan: Plan,
    desired: DesiredComponents,
    members: dict[int, ListedMember],
    *,
    leader: int = 0,
    unready: set[str] | None = None,
) -> Observed:
    return Observed(
        plan=plan,
        statuses=statuses(plan, *(names(plan) - (unready or set()))),
        desired=desired,
        membership=Membership(members=members, leader=leader),
    )


def grown(plan: Plan, index: int, *, is_learner: bool) -> Plan:
    member = Instance("etcd", index, OLD, ("etcd", *FIRST_START), is_learner=is_learner)
    return plan.including(member)


def test_the_list_of_members_is_read_only_if_the_next_step_needs_it() -> None:
    plan, one, three = settled(components()), components(), components(etcd=3)
    assert not needs_membership(plan, one)
    assert needs_membership(plan, three)
    assert needs_membership(grown(plan, 1, is_learner=True), components(etcd=3))
    assert not needs_membership(Plan(), three)
    complete = settled(three)
    assert not needs_membership(complete, three)
    assert needs_membership(complete, with_etcd("--snapshot-count=5"))
    # Nothing can lead instead of the only member.
    assert not needs_membership(plan, with_etcd("--snapshot-count=5", 1))


def test_only_members_that_joined_before_start_without_a_stored_plan() -> None:
    desired = components(etcd=3)
    assert names(next_plan(Plan(), desired, set())) >= {"etcd-0", "etcd-1", "etcd-2"}
    assert names(next_plan(Plan(), desired, set(), joined={0, 4})) == {"etcd-0", "relay-0"}


def test_a_lost_member_that_etcd_removed_joins_as_a_learner() -> None:
    desired = components(etcd=3)
    plan = settled(desired).without(desired.etcd[1])
    observed = replace(resized(plan, desired, listed_members(0, 2)), losses={1: Loss.GONE})
    step = next_step(desired, observed)
    assert (step.change, step.replacement) == (AddLearner(1), None)
    # etcd expects it as a full member: an interrupted replacement continues.
    listed = {**listed_members(0, 2), 1: ListedMember("1", "https://peer-1", started=False)}
    observed = replace(resized(plan, desired, listed), losses={1: Loss.GONE})
    assert next_step(desired, observed).replacement == Replacement(1, 0, Loss.GONE)


def test_flags_for_the_first_start_do_not_restart_a_member() -> None:
    old = settled(with_etcd("--initial-cluster=etcd-0=https://peer-0", 1))
    assert is_complete(old, with_etcd("--initial-cluster=etcd-0=https://another", 1))
    assert not is_complete(old, with_etcd("--snapshot-count=5", 1))


def test_etcd_grows_before_api_servers_use_the_new_members() -> None:
    plan = settled(components(OLD))
    desired = components(NEW, etcd=3)
    first = next_step(desired, resized(plan, desired, listed_members(0)))
    assert first.change == AddLearner(1)
    assert not names(first.plan) - names(plan)
    learning = grown(plan, 1, is_learner=True)
    step = next_step(desired, resized(learning, desired, listed_members(0, 1, learner=1)))
    assert step.change == Promote(1)
    step = next_step(desired, resized(learning, desired, listed_members(0, 1)))
    assert step.change == AddLearner(2)
    assert not any(member.is_learner for member in step.plan.of("etcd"))
    assert names(step.plan) == names(learning)


def test_learner_starts_after_an_earlier_process_has_ended() -> None:
    plan, desired = settled(components()), components(etcd=3)
    listed = {
        **listed_members(0),
        1: ListedMember("1", "https://peer-1", started=False, learner=True),
    }
    observed = resized(plan, desired, listed)
    assert next_step(desired, observed).change == StartLearner(1)
    stopping = replace(observed, stopping=frozenset({"etcd-1"}))
    assert next_step(desired, stopping).change is None


def test_etcd_shrinks_after_api_servers_stopped_using_the_members() -> None:
    plan = settled(components(OLD, etcd=3))
    desired = components(NEW)
    members = listed_members(0, 1, 2)
    rolling = next_step(desired, resized(plan, desired, members))
    assert rolling.change is None
    assert "kube-apiserver-1" in names(rolling.plan)
    current = settled(components(NEW, etcd=3), plan)
    step = next_step(desired, resized(current, desired, members, leader=2))
    assert step.change == MoveLeadership(2, 0)
    step = next_step(desired, resized(current, desired, members))
    assert step.change == Remove(2)
    step = next_step(desired, resized(current, desired, listed_members(0, 1)))
    assert names(current) - names(step.plan) == {"etcd-2"}


def test_leadership_moves_before_the_leader_restarts() -> None:
    old, changed = settled(components(etcd=3)), with_etcd("--snapshot-count=5")
    observed = resized(old, changed, listed_members(0, 1, 2))
    # The leader is the last one.
    assert current_members(next_step(changed, observed).plan, changed) == {"etcd-1"}
    last = old.including(changed.etcd[1], changed.etcd[2])
    observed = resized(last, changed, listed_members(0, 1, 2))
    step = next_step(changed, observed)
    assert (step.plan, step.change) == (last, MoveLeadership(0, 1))
    moved = resized(last, changed, listed_members(0, 1, 2), leader=1)
    assert current_members(next_step(changed, moved).plan, changed) == {
        "etcd-0",
        "etcd-1",
        "etcd-2",
    }


def test_members_leave_after_api_servers_have_drained() -> None:
    plan, desired = settled(components()), components()
    plan = plan.including(*components(etcd=3).etcd)
    observed = resized(plan, desired, listed_members(0, 1, 2))
    assert next_step(desired, observed).change == Remove(2)
    draining = replace(observed, stopping=frozenset({"kube-apiserver-1"}))
    assert next_step(desired, draining).change is None


def test_a_lost_member_is_replaced_while_others_leave() -> None:
    plan, desired = settled(components(etcd=3)), components()
    observed = resized(plan, desired, listed_members(0, 1, 2), unready={"etcd-0"})
    lost = replace(observed, losses={0: Loss.UNUSABLE})
    assert next_step(desired, lost).set_aside == 0


def test_no_member_leaves_because_no_api_server_is_desired() -> None:
    plan, desired = settled(components(etcd=3)), components(replicas=0)
    step = next_step(desired, resized(plan, desired, listed_members(0, 1, 2)))
    assert names(step.plan) == {"etcd-0", "etcd-1", "etcd-2", "relay-0"}


def test_no_member_restarts_while_another_joins() -> None:
    plan = grown(settled(components()), 1, is_learner=True)
    changed = with_etcd("--snapshot-count=5")
    observed = resized(plan, changed, listed_members(0, 1, learner=1), unready={"etcd-1"})
    step = next_step(changed, observed)
    # Only the learner restarts: it is down, and may need just this change. It stays a learner.
    assert current_members(step.plan, changed) == set()
    (learner,) = [member for member in step.plan.of("etcd") if member.index == 1]
    assert learner.is_learner
    assert learner.arguments == (*changed.etcd[1].arguments, *FIRST_START)
