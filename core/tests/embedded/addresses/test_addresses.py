import asyncio
import socket
from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest
from capelin.embedded.addresses import (
    NETWORK,
    address_of,
    free_address,
    free_port,
    is_free,
    is_listening,
    own_addresses,
    source_towards,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((address_of("a listener of this test"), 0)) as server:
        yield server


@given(identity=st.text(), attempt=st.integers(0, 100))
def test_every_identity_has_an_address_in_our_network(identity: str, attempt: int) -> None:
    address = IPv4Address(address_of(identity, attempt))
    assert address in NETWORK
    assert address not in {NETWORK.network_address, NETWORK.broadcast_address}


def test_an_identity_keeps_its_address() -> None:
    # Written out, because kubeconfigs that were handed out name it.
    assert address_of("default/demo") == "127.72.140.8"


def test_attempts_and_identities_have_different_addresses() -> None:
    assert len({address_of(name, attempt) for name in "abc" for attempt in range(10)}) == 30


def test_an_address_that_is_taken_is_passed_over() -> None:
    first, second = address_of("a"), address_of("a", 1)
    assert free_address("a") == first
    assert free_address("a", taken=[first]) == second


def test_an_address_whose_port_is_in_use_is_passed_over(listener: socket.socket) -> None:
    address, port = listener.getsockname()
    assert address == address_of("a listener of this test")
    assert free_address("a listener of this test", ports=[port]) != address


def test_somebody_who_listens_everywhere_leaves_no_address() -> None:
    with socket.create_server(("0.0.0.0", 0)) as everywhere:  # noqa: S104 - that is the point
        port = everywhere.getsockname()[1]
        with pytest.raises(OSError, match=f"has its ports {port} free. Stop programs"):
            free_address("a", ports=[port])


def test_a_preferred_port_is_taken_when_it_is_free(listener: socket.socket) -> None:
    address, port = listener.getsockname()
    assert not is_free(address, port)
    other = free_port(address, port)
    assert other != port
    assert is_free(address, other)
    assert free_port(address, other) == other


async def test_a_port_that_was_just_in_use_is_free(listener: socket.socket) -> None:
    address, port = listener.getsockname()
    with socket.create_connection((address, port)):
        connection, _ = listener.accept()
        # The side that closes first keeps the connection's remains for a minute.
        connection.close()
        listener.close()
    assert is_free(address, port)


async def test_whether_somebody_listens_is_known(listener: socket.socket) -> None:
    address, port = listener.getsockname()
    assert await is_listening(address, port)
    listener.close()
    async with asyncio.timeout(5):
        assert not await is_listening(address, port)


def test_whoever_is_on_this_machine_is_called_from_it() -> None:
    assert source_towards("127.64.3.9", 6443) == "127.0.0.1"
    assert source_towards("nowhere.invalid", 6443) is None


def test_every_address_of_our_own_can_be_listened_on() -> None:
    assert "127.0.0.1" in own_addresses()
    assert all(is_free(address, free_port(address)) for address in own_addresses())
