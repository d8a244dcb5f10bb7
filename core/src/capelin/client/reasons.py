"""Why there was no answer over HTTP, in the same words every time."""

import os

import aiohttp


def why_lost(error: aiohttp.ClientError) -> str:
    """What went wrong with a connection, in the same words every time."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            problem = error.certificate_error
            why = f"its certificate is not trusted: {getattr(problem, 'verify_message', problem)}"
        case aiohttp.ClientConnectorDNSError():
            why = "its name is not known"
        case aiohttp.ClientSSLError():
            why = f"no TLS with it: {getattr(error.os_error, 'reason', None) or 'refused'}"
        case aiohttp.ConnectionTimeoutError():
            why = "no connection in time"
        case aiohttp.ClientHttpProxyError(status=status):
            why = f"its proxy answered with status {status}"
        case aiohttp.ServerTimeoutError():
            why = "it fell silent"
        case aiohttp.ClientOSError(errno=int(number)):
            why = os.strerror(number).lower()
        case _:
            why = "it closed the connection"
    return why
