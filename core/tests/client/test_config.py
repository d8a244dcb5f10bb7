import base64
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from capelin.client import (
    Config,
    ConfigError,
    ExecPlugin,
    Impersonation,
    Server,
    User,
    safe_kubeconfig,
)


def kubeconfig(
    user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, **extra: Any
) -> bytes:
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "one",
            "clusters": [
                {"name": "c", "cluster": {"server": "https://api:6443", **(cluster or {})}}
            ],
            "users": [{"name": "u", "user": user or {}}],
            "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
            **extra,
        }
    ).encode()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_all_fields_of_a_server_are_read() -> None:
    config = Config.from_kubeconfig(
        kubeconfig(
            cluster={
                "server": "https://api:6443/prefix/",
                "certificate-authority-data": encoded(b"CA"),
                "tls-server-name": "kubernetes",
                "proxy-url": "http://proxy:3128",
            }
        )
    )
    assert config.server == Server(
        "https://api:6443/prefix", b"CA", True, "kubernetes", "http://proxy:3128"
    )
    assert config.namespace == "default"


def test_all_fields_of_a_user_are_read() -> None:
    config = Config.from_kubeconfig(
        kubeconfig(
            {
                "client-certificate-data": encoded(b"CERTIFICATE"),
                "client-key-data": encoded(b"KEY"),
                "token": "T",
                "username": "ann",
                "password": "P",
                "as": "bob",
                "as-uid": "7",
                "as-groups": ["g"],
                "as-user-extra": {"scope": ["a", "b"]},
            }
        )
    )
    assert config.user == User(
        certificate=b"CERTIFICATE",
        key=b"KEY",
        token="T",
        username="ann",
        password="P",
        impersonate=Impersonation("bob", "7", ("g",), {"scope": ("a", "b")}),
    )


def test_repr_contains_no_secrets() -> None:
    config = Config.from_kubeconfig(
        kubeconfig(
            {
                "token": "geheim",
                "password": "geheim",
                "username": "u",
                "client-certificate-data": encoded(b"geheim"),
                "client-key-data": encoded(b"geheim"),
            },
            {"proxy-url": "http://u:geheim@proxy"},
        )
    )
    assert "geheim" not in repr(config)


def test_paths_are_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    user = {"client-certificate": "pki/me.crt", "client-key": "/etc/me.key", "tokenFile": "token"}
    file = tmp_path / "deep" / "config"
    file.parent.mkdir()
    file.write_bytes(kubeconfig(user, {"certificate-authority": "../ca.crt"}))
    config = Config.from_kubeconfig(file)
    assert config.server.ca == file.parent / "../ca.crt"
    assert config.user.certificate == file.parent / "pki/me.crt"
    assert config.user.key == Path("/etc/me.key")
    assert config.user.token_file == file.parent / "token"


def test_data_takes_precedence_over_a_file() -> None:
    cluster = {"certificate-authority": "ca.crt", "certificate-authority-data": encoded(b"CA")}
    assert Config.from_kubeconfig(kubeconfig(cluster=cluster)).server.ca == b"CA"


def test_a_context_can_be_selected() -> None:
    content = kubeconfig(
        contexts=[
            {"name": "one", "context": {"cluster": "c", "user": "u"}},
            {"name": "two", "context": {"cluster": "c", "namespace": "team"}},
        ]
    )
    assert Config.from_kubeconfig(content).namespace == "default"
    assert Config.from_kubeconfig(content, "two").namespace == "team"
    with pytest.raises(ConfigError, match='has no context "three": there are one, two'):
        Config.from_kubeconfig(content, "three")


def test_a_single_context_needs_no_current_context() -> None:
    content = kubeconfig().replace(b"current-context: one\n", b"")
    assert Config.from_kubeconfig(content).server.address == "https://api:6443"


def test_the_first_of_several_files_wins(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second" / "config"
    second.parent.mkdir()
    first.write_bytes(kubeconfig({"token": "first"}, contexts=[], clusters=[]))
    second.write_bytes(kubeconfig({"token": "second"}, {"certificate-authority": "ca.crt"}))
    listed = os.pathsep.join(str(path) for path in (tmp_path / "missing", first, second))
    config = Config.find(environ={"KUBECONFIG": listed})
    assert config.user.token == "first"
    assert config.server.ca == second.parent / "ca.crt"


def test_find_fails_if_no_listed_file_is_readable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file exists"):
        Config.find(environ={"KUBECONFIG": str(tmp_path / "missing")})
    with pytest.raises(ConfigError, match=f"kubeconfig {tmp_path} cannot be read: Is a directory"):
        Config.find(environ={"KUBECONFIG": str(tmp_path)})


EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "login"}


def test_an_exec_plugin_is_read(tmp_path: Path) -> None:
    plugin = {
        **EXEC,
        "args": ["--for", "me"],
        "env": [{"name": "A", "value": "B"}],
        "provideClusterInfo": True,
        "interactiveMode": "IfAvailable",
        "installHint": "get it",
    }
    assert Config.from_kubeconfig(kubeconfig({"exec": plugin})).user.exec == ExecPlugin(
        EXEC["apiVersion"], "login", ("--for", "me"), {"A": "B"}, True, "get it"
    )
    file = tmp_path / "config"
    file.write_bytes(kubeconfig({"exec": {**EXEC, "command": "./bin/login"}}))
    program = Config.from_kubeconfig(file).user.exec
    assert program is not None
    assert program.command == str(tmp_path / "bin/login")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x00", "is not YAML"),
        (b"token: [geheim", "is not YAML"),
        (b"- a", "is not a kubeconfig"),
        (b"", "is not a kubeconfig"),
        (b"clusters: 3\ncurrent-context: x", "clusters is not a list"),
        (b"clusters: [{cluster: {}}]", "one of its clusters has no name"),
        (b"users: [{name: a, user: [geheim]}]", 'user "a" is not a mapping'),
        (b"current-context: a", 'has no context "a": there are none'),
        (b"kind: Config", "has no current-context: there are none"),
        (kubeconfig(cluster={"server": ""}), 'cluster "c" has no server'),
        (kubeconfig(cluster={"server": "api:6443"}), '"api:6443" is not the address'),
        (kubeconfig(cluster={"server": "https://api:port"}), '"https://api:port" is not the'),
        (kubeconfig(cluster={"server": "https://[::1"}), '"https://[::1" is not the address'),
        (kubeconfig(cluster={"server": 3}), "server is not text"),
        (kubeconfig(cluster={"proxy-url": "socks5://x"}), "must start with http:// or https://"),
        (kubeconfig(cluster={"certificate-authority-data": "?"}), "is not base64"),
        (
            kubeconfig(
                cluster={"certificate-authority": "x", "insecure-skip-tls-verify": True},
            ),
            "both a certificate authority and insecure-skip-tls-verify",
        ),
        (kubeconfig({"client-certificate": "a"}), "needed together"),
        (kubeconfig({"auth-provider": {"name": "gcp"}}), "auth-provider, which Kubernetes removed"),
        (kubeconfig({"exec": "x"}), "exec is not a mapping"),
        (kubeconfig({"exec": {**EXEC, "command": ""}}), "exec has no command"),
        (
            kubeconfig({"exec": {**EXEC, "apiVersion": "v1alpha1"}}),
            "exec needs the api",
        ),
        (kubeconfig({"exec": {**EXEC, "interactiveMode": "Always"}}), "exec needs a terminal"),
        (kubeconfig({"exec": {**EXEC, "env": ["A=B"]}}), "env is not a list of names and values"),
        (kubeconfig({"exec": {**EXEC, "args": "x"}}), "args is not a list"),
        (kubeconfig({"token": 123}), "token is not text"),
        (kubeconfig({"as": "bob", "as-groups": "g"}), "as-groups is not a list"),
        (kubeconfig({"as": "bob", "as-user-extra": ["g"]}), "as-user-extra is not a mapping"),
    ],
)
def test_an_invalid_kubeconfig_fails_without_quoting_secrets(content: bytes, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_kubeconfig(content)
    assert message in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_the_error_names_a_missing_file(tmp_path: Path) -> None:
    file = tmp_path / "config"
    with pytest.raises(ConfigError, match=f"kubeconfig {file} cannot be read: No such file"):
        Config.from_kubeconfig(file)
    with pytest.raises(ConfigError, match=f"kubeconfig {file} cannot be read: No such file"):
        Config.find(file)


@pytest.mark.parametrize(
    "user",
    [
        {"exec": EXEC},
        {"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"},
        {"client-certificate": "/a", "client-key-data": encoded(b"K")},
        {"client-certificate-data": encoded(b"C"), "client-key": "/b"},
        {"auth-provider": {"name": "gcp"}},
    ],
)
def test_a_kubeconfig_from_a_secret_cannot_use_this_machine(user: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"would run a program or read a file|auth-provider"):
        Config.from_secret(kubeconfig(user))
    with pytest.raises(ConfigError, match="certificate-authority"):
        Config.from_secret(kubeconfig(cluster={"certificate-authority": "/etc/shadow"}))


PLAIN = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "https://api:6443"}}]
contexts: [{name: c, context: {cluster: c, user: good}}]
users:
- name: good
  user:
    token: geheim
"""
RUN = "{apiVersion: client.authentication.k8s.io/v1, command: /bin/sh, interactiveMode: Never}"
AMBIGUOUS = {
    # PyYAML lets explicit keys win at any position; go-yaml reads this as an exec plugin.
    "merge key": PLAIN + f"    <<: {{exec: {RUN}}}\n",
    "merge key of the context": PLAIN.replace("user: good}}]", "user: good, <<: {user: evil}}}]"),
    "merge list": PLAIN + f"    <<: [{{exec: {RUN}}}]\n",
    "quoted merge key": PLAIN + f'    "<<": {{exec: {RUN}}}\n',
    "tagged merge key": PLAIN + f"    !!merge x: {{exec: {RUN}}}\n",
    "key twice": PLAIN + "    token: other\n",
    "anchor": PLAIN.replace("token: geheim", "token: &a geheim"),
    "alias": PLAIN.replace("token: geheim", "username: &a geheim\n    token: *a"),
    "tag": PLAIN.replace("token: geheim", "token: !!str geheim"),
    "two documents": PLAIN + "---\n" + PLAIN,
    "key that is not text": PLAIN + "    ? [exec]\n    : x\n",
    "key that is a boolean in YAML 1.1": PLAIN + "    yes: x\n",
    "more than 64 KiB": PLAIN + "#" * 2**16,
}


@pytest.mark.parametrize("content", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_an_ambiguous_kubeconfig_is_rejected(content: str) -> None:
    assert Config.from_secret(PLAIN.encode()).user.token == "geheim"
    with pytest.raises(ConfigError) as caught:
        Config.from_secret(content.encode())
    assert "geheim" not in str(caught.value)
    with pytest.raises(ConfigError):
        safe_kubeconfig(content.encode())


@pytest.mark.parametrize(
    "text",
    [
        *("yes", "null", "~", "1e3", "0x1f", "010", "1_000", "12:30", "2026-01-01", ".inf", "<<"),
        *(
            "a: b",
            "a #b",
            "- a",
            "!!binary YQ==",
            "&a",
            "*a",
            "{a: b}",
            "'",
            '"',
            "%",
            "@",
            "\\u0041",
        ),
        *("line\nbreak", "tab\t", "nel\x85", "ls\u2028", "\U0001f41f", "a" * 5000, "a b " * 500),
    ],
)
def test_safe_kubeconfig_quotes_every_text_of_the_user(text: str) -> None:
    content = kubeconfig({"token": text, "as": text, "as-user-extra": {f"{text} ": [text]}})
    written = safe_kubeconfig(content, name="demo")
    assert Config.from_secret(written) == Config.from_secret(content)
    nodes = [
        node
        for node in yaml.parse(written)
        if isinstance(node, yaml.ScalarEvent) and node.style is None
    ]
    # Only our own keys have no quotes, and every parser reads those as text.
    assert {node.value for node in nodes} <= {
        *("apiVersion", "kind", "current-context", "clusters", "name", "cluster", "server"),
        *("users", "user", "token", "as", "as-groups", "as-user-extra", "contexts", "context"),
        *("namespace",),
    }
    assert "demo" in written.decode()


def test_a_kubeconfig_from_a_secret_may_contain_credentials() -> None:
    config = Config.from_secret(
        kubeconfig(
            {"client-certificate-data": encoded(b"C"), "client-key-data": encoded(b"K")},
            {"certificate-authority-data": encoded(b"CA")},
        )
    )
    assert (config.server.ca, config.user.certificate, config.user.key) == (b"CA", b"C", b"K")


@pytest.fixture
def service_account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("T")
    (tmp_path / "ca.crt").write_text("CA")
    (tmp_path / "namespace").write_text("capelin-system\n")
    return tmp_path


def test_a_pod_uses_its_service_account(service_account: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    config = Config.in_cluster(environ, service_account)
    assert config == Config(
        Server("https://10.0.0.1:443", service_account / "ca.crt"),
        User(token_file=service_account / "token"),
        "capelin-system",
    )


def test_an_ipv6_address_gets_brackets(service_account: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    config = Config.in_cluster(environ, service_account)
    assert config.server.address == "https://[fd00::1]:443"


def test_in_cluster_fails_outside_of_a_cluster(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    for variables, folder in (({}, tmp_path), (environ, tmp_path / "nothing")):
        with pytest.raises(ConfigError, match="does not run in a cluster"):
            Config.in_cluster(variables, folder)


def test_the_kubeconfig_in_the_home_directory_comes_last(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no kubeconfig found: set KUBECONFIG"):
        Config.find(environ={"HOME": str(tmp_path)})
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_bytes(kubeconfig())
    config = Config.find(environ={"HOME": str(tmp_path)})
    assert config.server.address == "https://api:6443"
    with pytest.raises(ConfigError, match="does not run in a cluster"):
        Config.find(environ={"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"})


@pytest.mark.parametrize(
    "config",
    [
        Config(Server("https://a:6443")),
        Config(
            Server("https://a:6443", ca=b"ca", tls_server_name="b", proxy="http://c:80"),
            User(certificate=b"certificate", key=b"key"),
            "there",
        ),
        Config(
            Server("http://a:80", ca=Path("/ca"), proxy="http://c:80"),
            User(certificate=Path("/certificate"), key=Path("/key"), token_file=Path("/token")),
        ),
        Config(Server("https://a:6443", verify=False), User(token="abc")),
        Config(
            Server("https://a:6443"),
            User(
                username="a",
                password="b",
                impersonate=Impersonation("c", "d", ("e",), {"f": ("g",)}),
            ),
        ),
        Config(
            Server("https://a:6443"),
            User(
                exec=ExecPlugin(
                    "client.authentication.k8s.io/v1",
                    "get-token",
                    ("--now",),
                    {"A": "b"},
                    provide_cluster_info=True,
                    install_hint="install it",
                )
            ),
        ),
    ],
)
def test_a_flattened_config_survives_a_round_trip(config: Config) -> None:
    assert Config.from_kubeconfig(config.flattened()) == config


def test_written_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = Config(Server("https://a:6443", ca=Path("ca.crt")))
    assert Config.from_kubeconfig(config.flattened()).server.ca == tmp_path / "ca.crt"
