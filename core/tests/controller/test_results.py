from capelin.controller import ObjectKey


def test_keys_have_the_format_of_kubectl() -> None:
    assert [str(ObjectKey("default", "a")), str(ObjectKey("", "a"))] == ["default/a", "a"]
