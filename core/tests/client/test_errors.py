"""Error responses become exceptions."""

import json
from typing import Any

import pytest
from capelin.client import ApiError, NotFound, NotServed
from capelin.client.errors import error_of

NOT_FOUND: dict[str, Any] = {
    "status": "Failure",
    "reason": "NotFound",
    "message": 'nodes "a" not found',
    "details": {"name": "a", "kind": "nodes"},
    "code": 404,
}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"kind": "Status", **NOT_FOUND}, NotFound),
        ({"ErrStatus": NOT_FOUND}, NotFound),
        (NOT_FOUND, NotServed),
        ({"kind": "Status", "reason": "NotFound"}, NotServed),
        ({"ErrStatus": {"reason": "NotFound"}}, NotServed),
        ({"ErrStatus": "not found"}, NotServed),
        (["not found"], NotServed),
    ],
    ids=str,
)
def test_only_a_404_that_names_an_object_becomes_not_found(
    body: object, expected: type[ApiError]
) -> None:
    assert type(error_of(404, json.dumps(body).encode())) is expected
