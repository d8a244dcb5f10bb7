"""The server of an extension: HTTP, TLS, processes, probes and metrics."""
