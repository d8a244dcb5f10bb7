"""The fixtures as a user of the plugin meets them."""

import http.client
import ssl
from pathlib import Path

from capelin.embedded.apiserver import ApiServer


def ready(server: ApiServer) -> str:
    trust = ssl.create_default_context(cafile=server.keys.ca("ca"))
    admin = server.keys.files("admin")
    trust.load_cert_chain(str(admin.certificate), str(admin.key))
    connection = http.client.HTTPSConnection(
        server.place.address, server.place.port, context=trust, timeout=5
    )
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_the_shared_api_server_answers(api_server: ApiServer, kubeconfig: Path) -> None:
    assert ready(api_server) == "ok"
    assert api_server.url in kubeconfig.read_text()


def test_an_own_api_server_is_another_one(api_server: ApiServer, own_api_server: ApiServer) -> None:
    assert ready(own_api_server) == "ok"
    assert own_api_server.place.address != api_server.place.address
