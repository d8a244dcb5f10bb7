from capelin.controller import ObjectKey


def test_keys_read_as_kubectl_writes_them() -> None:
    assert [str(ObjectKey("default", "a")), str(ObjectKey("", "a"))] == ["default/a", "a"]
