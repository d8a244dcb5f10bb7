"""Reads the body of a response, and no more of it than expected."""

import aiohttp

_CHUNK = 1 << 16


async def read_at_most(response: aiohttp.ClientResponse, limit: int) -> bytes | None:
    """The decompressed body. None as soon as it exceeds the limit: the connection is then closed.

    aiohttp's own `read` with a size returns the part that has arrived.
    """
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(_CHUNK):
        size += len(chunk)
        if size > limit:
            response.close()
            return None
        chunks.append(chunk)
    return b"".join(chunks)
