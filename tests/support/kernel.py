"""Processes and sockets in /proc."""

from pathlib import Path
from typing import Literal


def memory(pid: int | Literal["self"], line: Literal["VmRSS", "VmHWM"] = "VmRSS") -> int:
    """The resident memory of a process in bytes: now, or its maximum (`VmHWM`)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{line}:")[2].split()[0]) * 1024


def listening_ports(address: str) -> list[int]:
    """The TCP ports of an IPv4 address on which any process listens."""
    number = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return [
        int(line[1].partition(":")[2], 16)
        for line in lines
        if line[1].startswith(number) and line[3] == "0A"
    ]
