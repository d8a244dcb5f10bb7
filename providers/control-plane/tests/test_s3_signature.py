"""Signatures of requests, against the examples in the documentation of S3."""

from datetime import UTC, datetime

from capelin_control_plane.backup.s3 import (
    EMPTY_SHA256,
    S3Credentials,
    S3Request,
    signed_headers,
)

MOMENT = datetime(2013, 5, 24, tzinfo=UTC)
CREDENTIALS = S3Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
HOST = "examplebucket.s3.amazonaws.com"


def signature(request: S3Request) -> str:
    headers = signed_headers(request, CREDENTIALS, "us-east-1", MOMENT)
    return headers["authorization"].rpartition("=")[2]


def test_a_request_for_a_part_of_an_object_has_the_documented_signature() -> None:
    request = S3Request(
        method="GET",
        host=HOST,
        path="/test.txt",
        query={},
        sha256=EMPTY_SHA256,
        headers={"range": "bytes=0-9"},
    )
    expected = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    assert signature(request) == expected


def test_a_request_with_a_query_has_the_documented_signature() -> None:
    for query, expected in (
        ({"lifecycle": ""}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        (
            {"prefix": "J", "max-keys": "2"},
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ):
        request = S3Request(method="GET", host=HOST, path="/", query=query, sha256=EMPTY_SHA256)
        assert signature(request) == expected


def test_the_target_is_encoded_as_it_is_signed() -> None:
    request = S3Request(
        method="GET", host=HOST, path="/a/ü b", query={"b": "/+", "a": ""}, sha256=EMPTY_SHA256
    )
    assert request.target == "/a/%C3%BC%20b?a=&b=%2F%2B"


def test_a_temporary_key_sends_its_token() -> None:
    request = S3Request(method="GET", host=HOST, path="/", query={}, sha256=EMPTY_SHA256)
    credentials = S3Credentials("id", "a-secret", "a-token")
    headers = signed_headers(request, credentials, "us-east-1", MOMENT)
    assert headers["x-amz-security-token"] == "a-token"
    assert "x-amz-security-token" in headers["authorization"]
    assert "a-secret" not in repr(credentials)
    assert "a-token" not in repr(credentials)
