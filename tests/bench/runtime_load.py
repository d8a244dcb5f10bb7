"""One client that calls a hook as fast as it is answered: `runtime_load.py HOST PORT CA FILE`.

The file is a whole HTTP request. The client opens a TLS connection, calls once to warm up, prints
`ready`, waits for a number of seconds on its standard input, calls for as long, and writes the
milliseconds that each call took as 32-bit floats.
"""

import socket
import ssl
import sys
import time
from array import array
from pathlib import Path


def main(host: str, port: str, ca: str, file: str) -> None:
    """Call and measure."""
    request = Path(file).read_bytes()
    context = ssl.create_default_context(cafile=ca)
    plain = socket.create_connection((host, int(port)))
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with context.wrap_socket(plain, server_hostname=host) as connection:
        call(connection, request)
        sys.stdout.buffer.write(b"ready\n")
        sys.stdout.buffer.flush()
        end = time.perf_counter() + float(sys.stdin.readline())
        took = array("f")
        now = time.perf_counter()
        while now < end:
            start = now
            call(connection, request)
            now = time.perf_counter()
            took.append((now - start) * 1000)
    sys.stdout.buffer.write(took.tobytes())


def call(connection: ssl.SSLSocket, request: bytes) -> None:
    """Send a request and read the whole response, which must be a success."""
    connection.sendall(request)
    received = connection.recv(262144)
    while not is_whole(received):
        more = connection.recv(262144)
        if not more:
            raise ConnectionError("the server hung up")
        received += more
    if not received.startswith(b"HTTP/1.1 200") or b'"status":"Success"' not in received:
        raise ValueError(received[:500].decode())


def is_whole(received: bytes) -> bool:
    """Whether a response is complete."""
    head, separator, body = received.partition(b"\r\n\r\n")
    if not separator:
        return False
    lower_head = head.lower()
    _, length, rest = lower_head.partition(b"content-length: ")
    if length:
        return len(body) >= int(rest.partition(b"\r\n")[0])
    return body.endswith(b"\r\n0\r\n\r\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
