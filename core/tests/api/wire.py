"""A plain connection to the API server that exposes warnings and is fast for many requests."""

import base64
import http.client
import json
import os
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from capelin.api import Unstructured


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    warnings: list[str]

    @property
    def message(self) -> str:
        return self.body.get("message", "")


_IDLE_SECONDS = 20.0


class Wire:
    """A persistent connection with the credentials of the administrator."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        tls = ssl.create_default_context(cadata=authority)
        pair = kubeconfig.with_name(f"wire-{os.getpid()}.pem")
        pair.touch(0o600)
        pair.write_bytes(
            base64.b64decode(user["client-certificate-data"])
            + b"\n"
            + base64.b64decode(user["client-key-data"])
        )
        tls.load_cert_chain(pair)
        pair.unlink()
        host = str(cluster["server"]).removeprefix("https://")
        self._connection = http.client.HTTPSConnection(host, context=tls, timeout=30)
        self._used_at = time.monotonic()

    def send(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> Answer:
        # API servers close idle connections.
        if time.monotonic() - self._used_at > _IDLE_SECONDS:
            self._connection.close()
        self._used_at = time.monotonic()
        self._connection.request(
            method,
            path,
            None if body is None else json.dumps(body),
            {"Content-Type": content_type},
        )
        response = self._connection.getresponse()
        content = response.read()
        is_json = response.headers.get_content_type() == "application/json"
        return Answer(
            response.status,
            json.loads(content) if is_json else {"message": content.decode()},
            response.headers.get_all("Warning") or [],
        )

    def apply(self, path: str, body: Unstructured) -> Answer:
        return self.send(
            "PATCH",
            f"{path}?fieldManager=test&force=true&fieldValidation=Strict",
            body,
            "application/apply-patch+yaml",
        )

    def close(self) -> None:
        self._connection.close()
