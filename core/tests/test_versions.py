import pytest
from capelin.versions import Version
from hypothesis import given
from hypothesis import strategies as st

words = st.text("019abZ-", min_size=1, max_size=4)
identifiers = st.lists(words, max_size=3).map(tuple)
numbers = st.integers(0, 40)
versions = st.builds(Version, numbers, numbers, numbers, identifiers, identifiers)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v1.34.4", Version(1, 34, 4)),
        ("1.34.4", Version(1, 34, 4)),
        ("v1.35.0-rc.1", Version(1, 35, 0, ("rc", "1"))),
        ("v1.34.4+k3s1", Version(1, 34, 4, (), ("k3s1",))),
        ("v1.34.4-a-b.0+c.d-e", Version(1, 34, 4, ("a-b", "0"), ("c", "d-e"))),
    ],
)
def test_a_version_is_read(text: str, expected: Version) -> None:
    assert Version.parse(text) == expected
    assert str(expected) == text if text.startswith("v") else f"v{text}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v",
        "1.34",
        "v1.34",
        "latest",
        "v1.34.4.1",
        "vv1.34.4",
        "v1.34.4-",
        "v1.34.4+",
        "v1.34.x",
        "v1.34.4 ",
        "v1.34.4\n",
        "v1.34.٤",
        "v1.34.4-a..b",
        "v1.34.4_k3s1",
        "v9999999999.0.0",
    ],
)
def test_parse_rejects_invalid_versions(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a Kubernetes version. Write it as vMAJOR"):
        Version.parse(text)


@given(versions)
def test_a_version_survives_writing_and_reading(version: Version) -> None:
    assert Version.parse(str(version)) == version


ASCENDING = [
    "v1.33.13",
    "v1.34.0-alpha",
    "v1.34.0-alpha.1",
    "v1.34.0-alpha.beta",
    "v1.34.0-beta",
    "v1.34.0-beta.2",
    "v1.34.0-beta.11",
    "v1.34.0-rc.1",
    "v1.34.0",
    "v1.34.0+1",
    "v1.34.0+2",
    "v1.34.0+10",
    "v1.34.0+10.1",
    "v1.34.0+k3s1",
    "v1.34.2",
    "v1.34.10",
    "v2.0.0",
]


def test_versions_are_in_order() -> None:
    assert [str(v) for v in sorted(map(Version.parse, reversed(ASCENDING)))] == ASCENDING


def test_a_build_does_not_make_a_version_newer() -> None:
    plain, built = Version.parse("v1.34.0"), Version.parse("v1.34.0+k3s1")
    assert not plain.precedes(built)
    assert not built.precedes(plain)
    assert plain != built


@given(versions, versions, versions)
def test_the_order_is_total(a: Version, b: Version, c: Version) -> None:
    assert (a < b) + (a == b) + (b < a) == 1
    assert not (a < b < c) or a < c
    assert not a.precedes(b) or a < b
    assert a != b or hash(a) == hash(b)
