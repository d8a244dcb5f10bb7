"""From the events of watches to the views of the page."""

from capelin.contract import PAUSED_ANNOTATION
from capelin_cli.explain.model import Chain, Explanation, Link, Reference
from capelin_cli.ui.model import ClusterView, Lane
from capelin_cli.ui.store import Store
from capelin_cli.ui.views import changes, class_view, cluster_view, machine_sets

from .objects import (
    CONTROL_PLANE,
    RESOURCES,
    Clock,
    cluster,
    condition,
    control_plane,
    machine,
    pool,
    put,
    result,
    store,
)

PROD = ("default", "prod")
BLOCKED = (
    "Cluster is upgrading to v1.34.4\n"
    "  * Following hooks are blocking upgrade: BeforeClusterUpgrade: the storage is degraded"
)


def view_of(observed: Store) -> ClusterView:
    view = cluster_view(observed, PROD)
    assert view is not None
    return view


def lane(observed: Store, kind: str) -> Lane:
    return next(lane for lane in view_of(observed).timeline if lane.kind == kind)


def test_a_ready_cluster() -> None:
    view = view_of(store(cluster(), control_plane(), pool(), machine("m")))
    assert (view.summary.state, view.summary.message) == ("good", "")
    assert view.summary.cluster_class == "default/capelin"
    assert [row.title for row in view.tree.children] == ["CapelinControlPlane/prod", "Workers"]
    (workers,) = view.tree.children[1].children
    assert (workers.title, workers.counts) == ("MachinePool/workers", "1/1")
    assert [row.title for row in workers.children] == ["Machine/m"]


def test_objects_may_arrive_before_their_cluster() -> None:
    observed = store(machine("m"), pool(), control_plane())
    assert cluster_view(observed, PROD) is None
    put(observed, cluster())
    assert len(view_of(observed).tree.children) == 2


def test_good_machines_share_a_row_and_others_have_their_own() -> None:
    machines = [machine(f"m{number}") for number in range(3)]
    ill = machine("ill", message="the Node does not respond", phase="Failed")
    view = view_of(store(cluster(), pool(ready=3, of=4), *machines, ill))
    rows = view.tree.children[0].children[0].children
    assert [row.title for row in rows] == ["3 Machines", "Machine/ill"]
    assert rows[1].message == "the Node does not respond"
    assert (view.summary.machines.good, view.summary.machines.bad) == (3, 1)


def test_an_unhealthy_part_needs_attention_although_the_cluster_is_available() -> None:
    view = view_of(store(cluster(), pool(ready=0, of=1)))
    assert view.summary.state == "waiting"


def test_heat_maps_have_all_machines_by_set_and_name() -> None:
    observed = store(cluster(), machine("b"), machine("a", message="no"), machine("c", pool="gpu"))
    gpu, workers = machine_sets(observed.entries[PROD].machines.values())
    assert (gpu.title, gpu.names) == ("MachinePool/gpu", ["c"])
    assert (workers.names, workers.states) == (["a", "b"], ["bad", "good"])
    assert workers.messages == {"a": "no"}


def test_only_changed_clusters_are_sent_again() -> None:
    observed = store(cluster("one"), cluster("two"))
    everything = changes(observed, 0)
    assert [each.name for each in everything.clusters] == ["one", "two"]
    number = observed.number
    put(observed, machine("m", "two"))
    assert [each.name for each in changes(observed, number).clusters] == ["two"]


def test_a_deleted_cluster_is_sent_as_removed() -> None:
    observed = store(cluster("one"), cluster("two"))
    number = observed.number
    put(observed, cluster("one"), deleted=True)
    sent = changes(observed, number)
    assert (sent.removed, sent.total) == (["default/one"], 1)
    assert changes(observed, 0).removed == []


def test_a_complete_list_removes_the_objects_that_are_missing_in_it() -> None:
    observed = store(cluster(), machine("m"), machine("n"), control_plane())
    observed.sweep(RESOURCES["Machine"], {("default", "m")}, None)
    assert [*observed.entries[PROD].machines] == ["m"]
    observed.sweep(CONTROL_PLANE, set(), "other")
    assert observed.parts
    observed.sweep(CONTROL_PLANE, set(), None)
    assert not observed.parts


def test_an_unreadable_object_keeps_its_last_state() -> None:
    observed = store(cluster())
    broken = cluster()
    broken["status"]["conditions"] = "none"
    put(observed, broken)
    assert view_of(observed).summary.state == "good"
    assert len(observed.unreadable) == 1


def test_a_policy_that_blocks_has_a_row_and_a_lane() -> None:
    blocked = cluster("prod", condition("Available"), condition("TopologyReconciled", "False", "x"))
    observed = store(blocked, result())
    assert view_of(observed).tree.children[0].title == "BeforeClusterUpgrade/freeze"
    assert lane(observed, "Hook").spans[0].state == "waiting"


def test_a_hook_of_another_extension_has_a_lane_while_it_blocks() -> None:
    clock = Clock()
    unmet = condition("TopologyReconciled", "False", BLOCKED)
    observed = store(cluster("prod", unmet), clock=clock)
    assert lane(observed, "Hook").title == "BeforeClusterUpgrade"
    clock.advance(30)
    put(observed, cluster())
    (span,) = lane(observed, "Hook").spans
    assert span.text == "the storage is degraded"
    assert span.end is not None
    assert (span.end - span.start).total_seconds() == 30


def test_the_result_of_a_policy_replaces_the_response_of_its_hook() -> None:
    message = BLOCKED.replace("the storage is degraded", "policy freeze: waits for approval")
    unmet = condition("TopologyReconciled", "False", message)
    observed = store(cluster("prod", unmet), result())
    hooks = [each.title for each in view_of(observed).timeline if each.kind == "Hook"]
    assert hooks == ["BeforeClusterUpgrade · freeze"]


def test_the_timeline_has_the_phases_of_a_rollout() -> None:
    clock = Clock()
    observed = store(cluster(), control_plane(version="v1.33.9"), clock=clock)
    clock.advance(60)
    rolling = condition("RollingOut", "True", "1 of 3", at=50)
    put(observed, control_plane("prod", rolling, condition("Available"), version="v1.34.4"))
    spans = lane(observed, "ControlPlane").spans
    assert [span.text for span in spans] == ["Available, v1.33.9", "RollingOut, v1.34.4"]
    assert (spans[1].start - spans[0].start).total_seconds() == 50


def test_machines_have_lanes_when_they_are_new_or_change() -> None:
    clock = Clock()
    clock.advance(7200)
    observed = store(cluster(), machine("old"), machine("new", created=7190), clock=clock)
    assert [each.title for each in view_of(observed).timeline if each.kind == "Machine"] == ["new"]
    put(observed, machine("old", phase="Deleting"))
    clock.advance(5)
    put(observed, machine("old"), deleted=True)
    lanes = {each.title: each for each in view_of(observed).timeline}
    assert [span.text for span in lanes["old"].spans] == ["Running, v1.34.4", "Deleting, v1.34.4"]
    assert lanes["old"].spans[-1].end is not None


def test_paused_by_field_or_annotation() -> None:
    paused = {PAUSED_ANNOTATION: ""}
    by_field, by_annotation = cluster(spec={"paused": True}), cluster(annotations=paused)
    for observed in (store(by_field), store(by_annotation)):
        assert view_of(observed).summary.paused


def test_explanations_are_bounded() -> None:
    reference = Reference(kind="Cluster", name="prod")
    chain = Chain(links=[Link(object=reference, text="x")], cause="Unknown", responsible="you")
    observed = store(cluster())
    explanation = Explanation(cluster=reference, state="Waiting", chains=[chain] * 50)
    observed.explain(PROD, explanation)
    shown = view_of(observed).summary.explanation
    assert shown is not None
    assert len(shown.chains) == 10


def test_messages_are_bounded() -> None:
    unmet = condition("Available", "False", "x" * 30_000)
    view = view_of(store(cluster("prod", unmet)))
    assert len(view.summary.message) == len(view.tree.message) == 500


def with_topology(name: str, workers: int, **topology: str) -> dict[str, object]:
    made = cluster(name)
    made["spec"]["topology"] |= {
        "workers": {
            "machinePools": [{"class": "default", "name": "workers", "replicas": workers}],
        },
        "variables": [{"name": key, "value": value} for key, value in topology.items()],
    }
    return made


def test_differences_of_a_class() -> None:
    observed = store(
        with_topology("a", 3, zone="x"), with_topology("b", 3), with_topology("c", 9, zone="x")
    )
    view = class_view(observed, ("default", "capelin"))
    assert view is not None
    assert [each.field for each in view.differences] == [
        "variable zone",
        "workers workers: replicas",
    ]
    zone, replicas = view.differences
    assert [(value.text, value.clusters) for value in replicas.values] == [
        ("3", ["default/a", "default/b"]),
        ("9", ["default/c"]),
    ]
    assert zone.values[1].text == "unset"
    assert view.same == 2
    assert class_view(observed, ("default", "other")) is None
