import pytest
from capelin.contract import upgrade_problem
from capelin.versions import Version
from hypothesis import strategies as st

words = st.text("019abZ-", min_size=1, max_size=4)
identifiers = st.lists(words, max_size=3).map(tuple)
numbers = st.integers(0, 40)
versions = st.builds(Version, numbers, numbers, numbers, identifiers, identifiers)


@pytest.mark.parametrize(
    ("current", "desired"),
    [
        ("v1.33.13", "v1.33.13"),
        ("v1.33.13", "v1.34.0"),
        ("v1.33.0", "v1.33.13"),
        ("v1.34.0-rc.1", "v1.34.0"),
        ("v1.34.0+k3s2", "v1.34.0+k3s1"),
        ("1.33.0", "v1.34.4"),
    ],
)
def test_an_upgrade_by_at_most_one_minor_is_allowed(current: str, desired: str) -> None:
    assert upgrade_problem(current, desired) is None


@pytest.mark.parametrize(
    ("current", "desired", "expected"),
    [
        (
            "v1.34.4",
            "v1.34.3",
            "v1.34.3 is older than v1.34.4, and Kubernetes cannot downgrade. Use v1.34.4 or newer",
        ),
        (
            "v1.34.0",
            "v1.34.0-rc.1",
            (
                "v1.34.0-rc.1 is older than v1.34.0, and Kubernetes cannot downgrade. "
                "Use v1.34.0 or newer"
            ),
        ),
        (
            "v1.33.13",
            "v1.35.0",
            (
                "v1.35.0 is 2 minor versions after v1.33.13, and Kubernetes "
                "upgrades one at a time. Upgrade to v1.34 first"
            ),
        ),
        (
            "v1.33.13",
            "v1.36.1",
            (
                "v1.36.1 is 3 minor versions after v1.33.13, and Kubernetes "
                "upgrades one at a time. Upgrade to v1.34 first"
            ),
        ),
        (
            "v1.34.4",
            "v2.0.0",
            "no upgrade from v1.34.4 to v2.0.0 exists. Stay with v1",
        ),
    ],
)
def test_impossible_upgrade_is_rejected(current: str, desired: str, expected: str) -> None:
    assert upgrade_problem(current, desired) == expected
