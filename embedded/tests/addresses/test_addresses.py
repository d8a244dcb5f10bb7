import asyncio
import socket
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from capelin_embedded.addresses import (
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
    # A literal, because existing kubeconfigs contain it.
    assert address_of("default/demo") == "127.72.140.8"


def test_attempts_and_identities_have_different_addresses() -> None:
    assert len({address_of(name, attempt) for name in "abc" for attempt in range(10)}) == 30


def test_free_address_skips_a_taken_address() -> None:
    first, second = address_of("a"), address_of("a", 1)
    assert free_address("a") == first
    assert free_address("a", taken=[first]) == second


def test_free_address_skips_an_address_with_a_used_port(listener: socket.socket) -> None:
    address, port = listener.getsockname()
    assert address == address_of("a listener of this test")
    assert free_address("a listener of this test", ports=[port]) != address


def test_free_address_fails_if_a_process_listens_on_all_addresses() -> None:
    with socket.create_server(("0.0.0.0", 0)) as everywhere:  # noqa: S104 - the test needs it
        port = everywhere.getsockname()[1]
        with pytest.raises(OSError, match=f"has its ports {port} free. Stop programs"):
            free_address("a", ports=[port])


def test_free_port_prefers_the_given_port(listener: socket.socket) -> None:
    address, port = listener.getsockname()
    assert not is_free(address, port)
    other = free_port(address, port)
    assert other != port
    assert is_free(address, other)
    assert free_port(address, other) == other


def test_an_outgoing_connection_cannot_take_a_free_port() -> None:
    """A server that restarts would lose its port to the connection until it ends."""
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert free_port("0.0.0.0") < int(outgoing[0])  # noqa: S104 - it listens nowhere


async def test_a_recently_closed_port_is_free(listener: socket.socket) -> None:
    address, port = listener.getsockname()
    with socket.create_connection((address, port)):
        connection, _ = listener.accept()
        # The side that closes first keeps the connection in TIME_WAIT for a minute.
        connection.close()
        listener.close()
    assert is_free(address, port)


async def test_is_listening_detects_a_listener(listener: socket.socket) -> None:
    address, port = listener.getsockname()
    assert await is_listening(address, port)
    listener.close()
    async with asyncio.timeout(5):
        assert not await is_listening(address, port)


def test_source_towards_returns_loopback_for_this_machine() -> None:
    assert source_towards("127.64.3.9", 6443) == "127.0.0.1"
    assert source_towards("nowhere.invalid", 6443) is None


def test_processes_can_listen_on_all_own_addresses() -> None:
    assert "127.0.0.1" in own_addresses()
    assert all(is_free(address, free_port(address)) for address in own_addresses())
