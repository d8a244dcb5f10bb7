import pytest
from capelin.contract.versions import (
    count_versions,
    is_upgrading,
    kubelet_problem,
    upgrade_problem,
)
from capelin.versions import Version
from hypothesis import given
from hypothesis import strategies as st

words = st.text("019abZ-", min_size=1, max_size=4)
identifiers = st.lists(words, max_size=3).map(tuple)
numbers = st.integers(0, 40)
versions = st.builds(Version, numbers, numbers, numbers, identifiers, identifiers)


@pytest.mark.parametrize(
    ("current", "wanted"),
    [
        ("v1.33.13", "v1.33.13"),
        ("v1.33.13", "v1.34.0"),
        ("v1.33.0", "v1.33.13"),
        ("v1.34.0-rc.1", "v1.34.0"),
        ("v1.34.0+k3s2", "v1.34.0+k3s1"),
        ("1.33.0", "v1.34.4"),
    ],
)
def test_an_upgrade_by_at_most_one_minor_is_allowed(current: str, wanted: str) -> None:
    assert upgrade_problem(current, wanted) is None


@pytest.mark.parametrize(
    ("current", "wanted", "expected"),
    [
        (
            "v1.34.4",
            "v1.34.3",
            "v1.34.3 is older than v1.34.4, and Kubernetes cannot go back; give v1.34.4 or newer",
        ),
        (
            "v1.34.0",
            "v1.34.0-rc.1",
            (
                "v1.34.0-rc.1 is older than v1.34.0, and Kubernetes cannot go back; "
                "give v1.34.0 or newer"
            ),
        ),
        (
            "v1.33.13",
            "v1.35.0",
            (
                "v1.35.0 is 2 minor versions after v1.33.13, and Kubernetes goes up one at a time; "
                "go to v1.34 first"
            ),
        ),
        (
            "v1.33.13",
            "v1.36.1",
            (
                "v1.36.1 is 3 minor versions after v1.33.13, and Kubernetes goes up one at a time; "
                "go to v1.34 first"
            ),
        ),
        (
            "v1.34.4",
            "v2.0.0",
            "nobody knows how to go from v1.34.4 to v2.0.0; stay with v1",
        ),
    ],
)
def test_an_upgrade_that_kubernetes_cannot_make_is_refused(
    current: str, wanted: str, expected: str
) -> None:
    assert upgrade_problem(current, wanted) == expected


@pytest.mark.parametrize("kubelet", ["v1.34.9", "v1.34.0", "v1.33.1", "v1.32.0", "v1.31.14"])
def test_a_kubelet_may_be_three_minors_behind(kubelet: str) -> None:
    assert kubelet_problem(kubelet, "v1.34.4") is None


@pytest.mark.parametrize(
    ("kubelet", "expected"),
    [
        (
            "v1.35.0",
            "kubelet v1.35.0 is newer than its API server v1.34.4; upgrade the control plane first",
        ),
        (
            "v1.30.9",
            (
                "kubelet v1.30.9 is more than 3 minor versions older than its API server v1.34.4; "
                "upgrade the node first"
            ),
        ),
        (
            "v0.34.0",
            (
                "kubelet v0.34.0 is more than 3 minor versions older than its API server v1.34.4; "
                "upgrade the node first"
            ),
        ),
    ],
)
def test_a_kubelet_too_far_away_is_refused(kubelet: str, expected: str) -> None:
    assert kubelet_problem(kubelet, "v1.34.4") == expected


def test_running_versions_are_counted_from_the_oldest() -> None:
    running = ["v1.34.4", "1.33.13", "v1.34.4", "v1.34.0-rc.1"]
    assert list(count_versions(running).items()) == [
        ("v1.33.13", 1),
        ("v1.34.0-rc.1", 1),
        ("v1.34.4", 2),
    ]
    assert count_versions([]) == {}


@given(st.lists(versions))
def test_the_order_of_replicas_does_not_show(running: list[Version]) -> None:
    texts = [str(version) for version in running]
    assert list(count_versions(texts).items()) == list(count_versions(reversed(texts)).items())
    assert sum(count_versions(texts).values()) == len(texts)


@pytest.mark.parametrize(
    ("wanted", "running", "expected"),
    [
        ("v1.34.4", [], False),
        ("v1.34.4", ["v1.34.4"], False),
        ("v1.34.4", ["v1.34.4", "v1.33.13"], True),
        ("v1.34.4", ["v1.35.0"], False),
        ("v1.34.4", ["v1.34.4-rc.1"], True),
        # Another build is another version where nobody can say which is the newer one.
        ("v1.34.4+k3s2", ["v1.34.4+k3s1"], True),
        ("v1.34.4+k3s1", ["v1.34.4+k3s2"], True),
        ("v1.34.4+2", ["v1.34.4+1"], True),
        ("v1.34.4+1", ["v1.34.4+2"], False),
        ("v1.34.4+10", ["v1.34.4+2"], True),
        ("v1.34.4+01", ["v1.34.4+1"], False),
        ("v1.34.4+1.1", ["v1.34.4+01.0"], True),
        ("v1.34.4+k3s1", ["v1.34.4+1"], True),
        ("v1.34.4+1", ["v1.34.4+k3s1"], False),
        ("v1.34.4+k3s1", ["v1.34.4"], True),
        ("v1.34.4", ["v1.34.4+k3s1"], False),
        ("v1.34.4+a.1", ["v1.34.4+a.1.1"], False),
    ],
)
def test_an_upgrade_goes_on_while_core_sees_one(
    wanted: str, running: list[str], expected: bool
) -> None:
    assert is_upgrading(wanted, running) is expected
